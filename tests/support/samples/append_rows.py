"""Rows of an input for `statelog append`: two logs that take them, and readers of the lines."""

import io
import json

from statelog.cli.inputs.fields import FieldMapping, LogShape
from statelog.cli.inputs.json_lines import JsonLines
from statelog.cli.inputs.parquet_file import ParquetInput
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import OPAQUE, parse_value_schema

__all__ = ["AVSC", "BYTES", "GOOD", "MAP_AVSC", "TYPED", "lines_of", "reader", "rows_of"]

BYTES = LogShape(key_type=KeyType.STRING, value_schema=OPAQUE)
AVSC = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "long", "default": 7},
            {"name": "x", "type": ["null", "double"], "default": None},
            {"name": "s", "type": "string"},
            {"name": "on", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
            {"name": "tags", "type": ["null", {"type": "array", "items": "string"}], "default": None},
            {
                "name": "at",
                "type": ["null", {"type": "record", "name": "P", "fields": [{"name": "lat", "type": "double"}]}],
                "default": None,
            },
        ],
    }
)
TYPED = LogShape(key_type=KeyType.LONG, value_schema=parse_value_schema(AVSC, 1))
MAP_AVSC = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "m", "type": {"type": "map", "values": "long"}},
            {"name": "t", "type": ["null", {"type": "int", "logicalType": "time-millis"}], "default": None},
            {"name": "b", "type": "bytes", "default": ""},
        ],
    }
)
GOOD = b'{"key":"a","value":"1"}\n'


def lines_of(rows: list[dict[str, object]], end: str = "\n") -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + end for row in rows).encode()


def reader(data: bytes, shape: LogShape = BYTES, block_bytes: int = 64, **mapping: object) -> JsonLines:
    """An input over bytes, in blocks of very few."""
    fields = FieldMapping(**mapping)  # type: ignore[arg-type]  # every test names fields of the mapping
    return JsonLines(io.BytesIO(data).read, fields, shape, name="test", block_bytes=block_bytes)


def rows_of(source: JsonLines | ParquetInput) -> list[dict[str, object]]:
    """All rows that are left, each one taken."""
    found: list[dict[str, object]] = []
    for batch in source.batches():
        found += batch.to_pylist()
        source.take(batch.num_rows)
    return found
