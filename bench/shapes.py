"""Other shapes of work than workload W: skewed keys, tiny and large values, deletes, typed records of eight fields.

Each is appended in batches and read back into Arrow. The baseline is a tuned program with a record for each change,
which reads them into a dict. For typed records it is the same fields, packed into bytes before the clock runs. Values
of 10 KB are a fiftieth as many: about twice the bytes.
"""

import struct
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.figures import Figure, rate, timed
from bench.logs import bench_log, bulk_append
from bench.plain import plain_topic
from bench.setting import Setting
from bench.workload import batches, binary, keys_of, pairs
from statelog.recovery import recover

__all__ = ["shapes"]

_ROWS = 100_000
_SEED = 20261124
_ZIPF = 1.2
_LARGE = 10_000
_FIELDS = ("amount", "price", "count", "user", "page", "country", "is_paid", "seen_ms")
_RECORD = """{"type": "record", "name": "Visit", "fields": [
  {"name": "amount", "type": "long"}, {"name": "price", "type": "double"}, {"name": "count", "type": "int"},
  {"name": "user", "type": "long"}, {"name": "page", "type": "string"}, {"name": "country", "type": "string"},
  {"name": "is_paid", "type": "boolean"}, {"name": "seen_ms", "type": "long"}]}"""
Batches = list[pa.RecordBatch]


def shapes(setting: Setting) -> list[Figure]:
    """Measure writing and reading each shape, with a record for each of the same changes as baseline."""
    count, few = setting.scaled(0.2), setting.scaled(0.004)
    found = {
        f"Zipf keys ({_ZIPF})": _zipf(count, setting.keys),
        "8-byte values": _sized(count, setting.keys, 8),
        "10 KB values": _sized(few, setting.keys, _LARGE),
        "a fifth deletes": _with_deletes(batches(count, setting.keys)),
    }
    return [*_beside_records(setting, found), *_typed_beside_packed(setting, *_typed(count, setting.keys))]


def _beside_records(setting: Setting, shaped: Mapping[str, Batches]) -> list[Figure]:
    figures: list[Figure] = []
    for name, found in shaped.items():
        changes = pairs(found)
        ours, plain = _Takes(), _Takes()
        for _ in range(setting.rounds):
            with plain_topic(setting.bootstrap) as topic:
                plain.append.append(timed(partial(topic.produce, changes)))
                plain.replay.append(timed(partial(topic.replay, len(changes))))
            ours.take(setting, found)
        figures += _figures(name, len(changes), ours, "one record per change", plain)
    return figures


def _typed_beside_packed(setting: Setting, typed: Batches, packed: Batches) -> list[Figure]:
    ours, bytes_ = _Takes(), _Takes()
    for _ in range(setting.rounds):
        bytes_.take(setting, packed)
        ours.take(setting, typed, _RECORD)
    count = sum(one.num_rows for one in typed)
    return _figures("eight typed fields", count, ours, "the same, packed into bytes", bytes_)


class _Takes:
    """The time of each append, and of each replay into Arrow."""

    def __init__(self) -> None:
        self.append: list[float] = []
        self.replay: list[float] = []

    def take(self, setting: Setting, found: Batches, value_schema: str | None = None) -> None:
        """Append to a new log, and read the log back."""
        with bench_log(setting.bootstrap, setting.root, value_schema=value_schema) as log:
            self.append.append(timed(partial(bulk_append, log, found, commits=5)))
            self.replay.append(timed(lambda: recover(log).to_arrow()))


def _figures(name: str, count: int, ours: _Takes, beside: str, plain: _Takes) -> list[Figure]:
    return [
        rate(f"append, {name}", count, ours.append, beside, [(count, one) for one in plain.append]),
        rate(f"replay to Arrow, {name}", count, ours.replay, beside, [(count, one) for one in plain.replay]),
    ]


def _zipf(count: int, keys: int) -> Batches:
    """Return changes with the values of W, most of them on few keys."""
    rng = np.random.default_rng(_SEED)
    ids = (rng.zipf(_ZIPF, count) - 1) % keys
    return _with_keys(batches(count, keys), ids)


def _with_keys(found: Batches, ids: NDArray[np.int64]) -> Batches:
    made: Batches = []
    start = 0
    for one in found:
        part = ids[start : start + one.num_rows]
        made.append(pa.RecordBatch.from_arrays([keys_of(part), one.column("value")], names=["key", "value"]))
        start += one.num_rows
    return made


def _sized(count: int, keys: int, value_bytes: int) -> Batches:
    """Return changes with values of this size, half of which compresses."""
    rng, rows = np.random.default_rng(_SEED), max(100, min(_ROWS, (64 << 20) // value_bytes))
    made: Batches = []
    for start in range(0, count, rows):
        part = min(rows, count - start)
        values = np.zeros((part, value_bytes), np.uint8)
        values[:, : value_bytes // 2] = rng.integers(0, 256, (part, value_bytes // 2), dtype=np.uint8)
        columns = [keys_of(rng.integers(0, keys, part)), binary(values)]
        made.append(pa.RecordBatch.from_arrays(columns, names=["key", "value"]))
    return made


def _with_deletes(found: Batches) -> Batches:
    """Return the same changes, with every fifth a delete."""
    made: Batches = []
    for one in found:
        is_delete = np.arange(one.num_rows) % 5 == 0
        values = pc.if_else(pa.array(is_delete), pa.scalar(None, pa.binary()), one.column("value"))
        columns = [one.column("key"), values, pa.array(is_delete.astype(np.uint8))]
        made.append(pa.RecordBatch.from_arrays(columns, names=["key", "value", "op"]))
    return made


def _typed(count: int, keys: int) -> tuple[Batches, Batches]:
    """Return the same records as a struct of eight fields, and as packed bytes."""
    rng = np.random.default_rng(_SEED)
    pages, countries = pa.array([f"/page/{number}" for number in range(1000)]), pa.array(["DE", "FR", "US", "JP"])
    typed: Batches = []
    packed: Batches = []
    for start in range(0, count, _ROWS):
        rows = min(_ROWS, count - start)
        columns = [
            pa.array(rng.integers(0, 10**6, rows)), pa.array(rng.random(rows)),
            pa.array(rng.integers(0, 100, rows).astype(np.int32)), pa.array(rng.integers(0, 10**9, rows)),
            pages.take(pa.array(rng.integers(0, 1000, rows))), countries.take(pa.array(rng.integers(0, 4, rows))),
            pa.array(rng.random(rows) < 0.5), pa.array(rng.integers(0, 10**12, rows)),
        ]  # fmt: skip
        key = keys_of(rng.integers(0, keys, rows))
        struct_column = pa.StructArray.from_arrays(columns, names=list(_FIELDS))
        typed.append(pa.RecordBatch.from_arrays([key, struct_column], names=["key", "value"]))
        texts = [
            struct.pack("<qdiq?q", *numbers, is_paid, seen) + f"{page}\0{country}".encode()
            for *numbers, page, country, is_paid, seen in zip(*[one.to_pylist() for one in columns], strict=True)
        ]
        packed.append(pa.RecordBatch.from_arrays([key, pa.array(texts, pa.binary())], names=["key", "value"]))
    return typed, packed
