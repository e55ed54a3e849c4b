"""Changes in bulk: batches, splitting, cutting and folding, by examples. Hypothesis tests the properties."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import InvalidChange, KeyGroupMismatch, ValueTooLarge
from statelog.schemas.changes.changes import (
    DELETE,
    PUT,
    change_schema,
    changes_batch,
    chunk_slices,
    live,
    newest_sorted,
    row_sizes,
    split,
)
from statelog.schemas.changes.key_order import sorted_rows
from statelog.schemas.key_groups import KeyType
from tests.support.samples.folds import last_per_key, sort_by_key

SCHEMA = change_schema(KeyType.BYTES)
MOST = 15 << 20


def table(*rows: tuple[int, int, bytes, bytes | None]) -> pa.Table:
    """Return changes as a table, one row each."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def batch(*rows: tuple[int, int, bytes, bytes | None]) -> pa.RecordBatch:
    """Return changes as a batch, one row each."""
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def test_batch_from_columns() -> None:
    """A batch holds its columns in order, and typed values are a struct column."""
    typed = change_schema(KeyType.LONG, pa.struct([("a", pa.int64())]))
    values = pa.array([{"a": 1}, None], typed.field("value").type)
    made = changes_batch(
        typed, np.array([3, 4], np.uint16), np.array([PUT, DELETE], np.uint8), pa.array([7, 8]), values
    )
    assert made.schema.equals(typed)
    assert made.column("value").to_pylist() == [{"a": 1}, None]


@pytest.mark.parametrize(
    ("op", "key", "value"), [(PUT, b"k", None), (DELETE, b"k", b""), (2, b"k", b"v"), (PUT, None, b"v")]
)
def test_batches_that_are_refused(op: int, key: bytes | None, value: bytes | None) -> None:
    """A put without value, a delete with one, an unknown op and a null key are refused."""
    keys, values = pa.array([key], pa.binary()), pa.array([value], pa.binary())
    with pytest.raises(InvalidChange):
        changes_batch(SCHEMA, np.array([1], np.uint16), np.array([op], np.uint8), keys, values)


def test_split_by_partition() -> None:
    """Each partition gets its changes sorted by key group and in order per key. No partition's batch is empty."""
    mixed = batch((5, 0, b"e", b"1"), (0, 0, b"a", b"1"), (4, 0, b"d", b"1"), (0, 1, b"a", None), (7, 0, b"h", b"1"))
    parts = {partition: part.column("key").to_pylist() for partition, part in split(mixed, 4, 8)}
    assert parts == {0: [b"a", b"a"], 2: [b"d", b"e"], 3: [b"h"]}
    assert split(mixed, 4, 8)[0][1].column("op").to_pylist() == [PUT, DELETE]
    assert split(mixed.slice(0, 0), 4, 8) == []


def test_split_refuses_a_key_group_that_the_log_lacks() -> None:
    """A key group that the log lacks is refused, so that no change is dropped."""
    with pytest.raises(KeyGroupMismatch):
        split(batch((8, 0, b"a", b"1")), 4, 8)


def test_cut_by_size() -> None:
    """Slices stay below the size, a larger change is alone, and together they are the batch."""
    sizes = [10, 10, 500, 10, 90, 90, 90]
    whole = batch(*((1, 0, b"k", bytes(size)) for size in sizes))
    slices = chunk_slices(whole, 200, MOST)
    assert [[len(v) for v in s.column("value").to_pylist()] for s in slices] == [[10, 10], [500], [10, 90], [90], [90]]
    assert pa.Table.from_batches(slices).combine_chunks().to_batches()[0].equals(whole)
    assert chunk_slices(whole, 10_000, MOST) == [whole]
    assert chunk_slices(whole.slice(0, 0), 100, MOST) == []


def test_cut_of_a_slice_measures_only_the_slice() -> None:
    """A few rows of a large batch are measured by themselves, and are one slice."""
    whole = batch(*((1, 0, b"k", bytes(100)) for _ in range(1000)))
    assert [s.num_rows for s in chunk_slices(whole.slice(500, 3), 1000, MOST)] == [3]


def test_change_larger_than_a_chunk() -> None:
    """A change above the limit is refused with both sizes."""
    with pytest.raises(ValueTooLarge) as caught:
        chunk_slices(batch((1, 0, b"k", b"v"), (1, 0, b"k", bytes(5000))), 100, 4096)
    assert caught.value.facts["max_bytes"] == 4096


def test_row_sizes_of_nested_values() -> None:
    """Sizes follow the bytes of structs, lists and maps, in slices too."""
    kind = pa.struct([("s", pa.string()), ("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int32()))])
    rows: list[dict[str, object]] = [
        {"s": "abc", "l": [1, 2], "m": []},
        {"s": None, "l": None, "m": [("k", 1)]},
        {"s": "", "l": [], "m": []},
    ]
    column = pa.array(rows, kind)
    sizes = row_sizes(column).tolist()
    assert [size - sizes[2] for size in sizes] == [3 + 16, 4 + 1 + 4, 0]
    assert row_sizes(column.slice(1)).tolist() == sizes[1:]


def test_last_per_key() -> None:
    """The last change of a key wins, in row order; the same key in two key groups is two keys."""
    changes = table((1, 0, b"a", b"1"), (1, 0, b"b", b"2"), (2, 0, b"a", b"3"), (1, 1, b"a", None))
    assert last_per_key(changes).to_pylist() == changes.to_pylist()[1:]


def test_live() -> None:
    """Only puts are live, and an empty value is one."""
    assert live(table((1, 1, b"a", None), (1, 0, b"b", b""))).column("key").to_pylist() == [b"b"]


def test_sort_order_is_native() -> None:
    """Longs sort signed; bytes sort shorter first, zero bytes and prefixes included."""
    longs = pa.array([1, -1, 0, -(1 << 63), (1 << 63) - 1])
    order = sorted_rows(pa.array(np.zeros(5, np.uint16)), longs)
    assert longs.take(pa.array(order)).to_pylist() == sorted(longs.to_pylist())
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"ab", b"b" * 8, b"b" * 8 + b"\0", b"b" * 9, b"\xff" * 64]
    column = pa.array(list(reversed(keys)))
    order = sorted_rows(pa.array(np.zeros(len(keys), np.uint16)), column)
    assert column.take(pa.array(order)).to_pylist() == keys


@pytest.mark.parametrize("place", range(12))
def test_sort_finds_a_difference_in_any_byte(place: int) -> None:
    """Keys that differ in one byte only sort by it, wherever it is."""
    keys = [bytes(place) + bytes([b]) + bytes(11 - place) for b in (200, 3, 90)]
    rows = sorted_rows(pa.array(np.zeros(3, np.uint16)), pa.array(keys))
    assert rows.tolist() == [1, 2, 0]


def test_wide_keys() -> None:
    """Keys of 100 bytes fold and sort like others."""
    wide = b"k" * 100
    changes = table((2, 0, wide + b"2", b"1"), (2, 0, wide + b"1", b"2"), (1, 0, b"a", b"3"), (2, 1, wide + b"2", None))
    assert newest_sorted(changes).column("key").to_pylist() == [b"a", wide + b"1", wide + b"2"]
    assert newest_sorted(changes).equals(sort_by_key(last_per_key(changes)))


@pytest.mark.parametrize("fold", [last_per_key, sort_by_key, newest_sorted])
def test_folds_of_nothing(fold: Callable[[pa.Table], pa.Table]) -> None:
    """An empty table folds to itself, with and without chunks."""
    assert fold(SCHEMA.empty_table()).equals(SCHEMA.empty_table())
    assert fold(pa.Table.from_batches([], SCHEMA)).num_rows == 0
