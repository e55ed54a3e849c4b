"""The fold in Arrow retains the last change per key, however its input is cut, joined and accumulated."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.reading.sorted_tail import MemoryTail, newest, select_key_groups
from tests.support.samples.chunks import rows_batch
from tests.support.samples.folds import rows_of

_Row = tuple[int, int, bytes, bytes | None]
_rows = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"b", b"c", b"ab"]), st.none() | st.binary(max_size=3)),
    max_size=30,
).map(lambda rows: [(group, int(value is None), key, value) for group, key, value in rows])
_stretches = st.lists(_rows, max_size=6)


def _tables(stretches: list[list[_Row]]) -> list[pa.Table]:
    return [pa.Table.from_batches([rows_batch(rows)]) for rows in stretches]


def _naive(stretches: list[list[_Row]], *, keep_deletes: bool) -> dict[tuple[int, bytes], bytes | None]:
    found: dict[tuple[int, bytes], bytes | None] = {}
    for group, _, key, value in (row for rows in stretches for row in rows):
        found[group, key] = value
    return {key: value for key, value in found.items() if keep_deletes or value is not None}


def _as_dict(tables: list[pa.Table]) -> dict[tuple[int, bytes], Any]:
    rows = [row for table in tables for row in rows_of(table)]
    found = {(group, key): value for group, _, key, value in rows}
    assert len(found) == len(rows), "a key came out twice"
    return found


@settings(deadline=None)
@given(_stretches, st.booleans(), st.sampled_from([1, 20, 1 << 30]))
def test_newest_is_the_last_change_per_key(stretches: list[list[_Row]], keep_deletes: bool, max_key_bytes: int) -> None:
    """The last change per key remains, with and without deletes, also if the keys are compared in several slices."""
    found = newest(_tables(stretches), keep_deletes=keep_deletes, max_key_bytes=max_key_bytes)
    assert _as_dict(found) == _naive(stretches, keep_deletes=keep_deletes)


@settings(deadline=None)
@given(_stretches, st.sampled_from([1, 100, 1 << 20]))
def test_a_tail_that_is_folded_on_the_way_is_the_same_tail(stretches: list[list[_Row]], fold_bytes: int) -> None:
    """A tail folded at any time retains its deletes and the last change per key."""
    tail = MemoryTail(fold_bytes=fold_bytes)
    for rows in stretches:
        tail.add(0, rows_batch(rows))
    assert _as_dict(newest(tail.tables(0), keep_deletes=True)) == _naive(stretches, keep_deletes=True)
    assert tail.tables(1) == []


@settings(deadline=None)
@given(_stretches, st.sampled_from([1, 100, 1 << 20]), st.sampled_from([1, 100, 1 << 30]))
def test_a_tail_comes_out_sorted_or_live(stretches: list[list[_Row]], fold_bytes: int, most_bytes: int) -> None:
    """A tail is sorted by key group and key with its deletes, also in parts, or unordered without them."""
    tails = [MemoryTail(fold_bytes=fold_bytes) for _ in range(2)]
    for tail in tails:
        for rows in stretches:
            tail.add(0, rows_batch(rows))
    found = _as_dict(tails[0].sorted(0, most_bytes))
    assert list(found) == sorted(found)
    assert found == _naive(stretches, keep_deletes=True)
    assert _as_dict(tails[1].live(0)) == _naive(stretches, keep_deletes=False)


def test_a_table_that_keeps_all_rows_is_not_copied() -> None:
    """A run without replaced rows passes through without a copy."""
    (table,) = _tables([[(0, 0, b"%d" % i, b"v") for i in range(3000)]])
    assert newest([table], keep_deletes=False)[0] is table


def test_many_small_tables_become_few() -> None:
    """Many small tables are combined, so that small chunks do not cost a table each."""
    tables = _tables([[(0, 0, b"%d" % i, b"v")] for i in range(200)])
    assert len(newest(tables, keep_deletes=False)) <= 4


def test_select_keeps_only_wanted_key_groups() -> None:
    """Rows of wanted key groups are selected in order, without a copy if all are wanted."""
    batch = rows_batch([(3, 0, b"a", b""), (1, 0, b"b", b""), (3, 0, b"c", b"")])
    assert select_key_groups(batch, {3}).column("key").to_pylist() == [b"a", b"c"]
    assert select_key_groups(batch, range(4)) is batch
