"""Rows of an input for `statelog append`: two logs that take them, and readers of the lines."""

import io
import json
from dataclasses import replace

from statelog.cli.append import ParquetRows
from statelog.cli.fields import Fields
from statelog.cli.lines import Lines
from statelog.cli.row_readers import JsonRows
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import OPAQUE, parse_value_schema

__all__ = ["AVSC", "BYTES", "GOOD", "TYPED", "lines_of", "reader", "rows_of", "stream", "take_first"]

BYTES = Fields(key_type=KeyType.STRING, value_schema=OPAQUE)
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
TYPED = Fields(key_type=KeyType.LONG, value_schema=parse_value_schema(AVSC, 1))
GOOD = b'{"key":"a","value":"1"}\n'


def lines_of(rows: list[dict[str, object]], end: str = "\n") -> bytes:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + end for row in rows).encode()


def stream(data: bytes) -> io.BufferedReader:
    """Return bytes as an open file gives them."""
    return io.BufferedReader(io.BytesIO(data))


def reader(data: bytes, fields: Fields = BYTES, block_bytes: int = 64, **options: object) -> Lines:
    """Return JSON lines over bytes, in very small blocks."""
    fields = replace(fields, **options)  # type: ignore[arg-type]  # every test names options
    return Lines(stream(data), JsonRows(fields), name="test", block_bytes=block_bytes)


def rows_of(source: Lines | ParquetRows) -> list[dict[str, object]]:
    """Take and return all remaining rows."""
    found: list[dict[str, object]] = []
    for batch in source.batches():
        found += batch.to_pylist()
        source.take(batch.num_rows)
    return found


def take_first(source: Lines, rows: int) -> None:
    """Take so many rows, over as many batches as they need, as a run that ends after them does."""
    for batch in source.batches():
        taken = min(rows, batch.num_rows)
        if taken:
            source.take(taken)
        rows -= taken
        if not rows:
            break
