"""Changes under Hypothesis: the vectorized operations against naive twins of a few lines."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.schemas.changes import key_order
from statelog.schemas.changes.changes import DELETE, OPAQUE, PUT, chunk_slices, live, newest_sorted, row_sizes, split
from statelog.schemas.key_groups import KeyType, partition_of
from tests.support.samples.chunks import rows_batch
from tests.support.samples.folds import Row, last_per_key, rows_of, sort_by_key

TYPED = pa.struct([("a", pa.int64()), ("s", pa.string())])
# Few distinct bytes, so that keys repeat, share beginnings, and differ by padding only.
KEYS: dict[KeyType, st.SearchStrategy[object]] = {
    KeyType.BYTES: st.one_of(
        st.binary(max_size=2),
        st.lists(st.sampled_from([b"\0", b"a", b"\xff", b"common-prefix-", b"-" * 30]), max_size=5).map(b"".join),
    ),
    KeyType.STRING: st.text(st.sampled_from("\0aé\uffff🙂"), max_size=20),
    KeyType.LONG: st.one_of(st.integers(-2, 2), st.integers(-(1 << 63), (1 << 63) - 1)),
}
VALUES: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (OPAQUE, st.binary(max_size=12)),
    (TYPED, st.fixed_dictionaries({"a": st.integers(-5, 5), "s": st.one_of(st.none(), st.text(max_size=3))})),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], pa.Table]:
    """Draw rows of a log whose callers name the key groups, and the same as a table of several sliced chunks."""
    key_type = draw(st.sampled_from(KeyType))
    value_type, value = draw(st.sampled_from(VALUES))
    group, key = st.sampled_from([0, 1, 2, 7, 65535]), KEYS[key_type]
    change = st.one_of(st.tuples(group, st.just(PUT), key, value), st.tuples(group, st.just(DELETE), key, st.none()))
    rows: list[Row] = draw(st.lists(change, max_size=60))
    cuts = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=3)) | {0, len(rows)})
    whole = rows_batch(rows, key_type, value_type)
    pieces = [whole.slice(start, end - start) for start, end in pairwise(cuts)]
    return rows, pa.Table.from_batches(pieces, whole.schema)


def order_of(row: Row) -> tuple[int, object]:
    """Return the native order: key groups, then signed longs, bytes, or UTF-8 bytes."""
    return row[0], row[2].encode() if isinstance(row[2], str) else row[2]


def naive_last(rows: list[Row]) -> list[Row]:
    """Return the last row of every (key group, key), in row order."""
    last = {(row[0], row[2]): number for number, row in enumerate(rows)}
    return [rows[number] for number in sorted(last.values())]


@settings(deadline=None, max_examples=300)
@given(tables())
def test_folds_equal_their_naive_twins(case: tuple[list[Row], pa.Table]) -> None:
    """last_per_key, sort_by_key, newest_sorted and live give the rows that plain Python gives."""
    rows, table = case
    assert rows_of(last_per_key(table)) == naive_last(rows)
    assert rows_of(sort_by_key(table)) == sorted(rows, key=order_of)
    assert rows_of(newest_sorted(table)) == sorted(naive_last(rows), key=order_of)
    assert rows_of(live(table)) == [row for row in rows if row[1] == PUT]


@settings(deadline=None, max_examples=200)
@given(tables())
def test_words_and_arrow_agree(case: tuple[list[Row], pa.Table]) -> None:
    """Comparing keys as words, and with Arrow where words tell too little, gives the same rows."""
    _, table = case
    folds = (last_per_key, sort_by_key, newest_sorted)
    by_words = [fold(table) for fold in folds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_MOST_PASSES", 0)
        assert [fold(table) for fold in folds] == by_words


@settings(deadline=None, max_examples=200)
@given(tables(), st.integers(1, 65536))
def test_split_keeps_every_change_in_order(case: tuple[list[Row], pa.Table], partitions: int) -> None:
    """Each partition gets exactly its changes, by key group, in the order of the batch within one."""
    rows, table = case
    expected: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[0]):
        expected.setdefault(partition_of(row[0], partitions, 65536), []).append(row)
    batch = pa.concat_batches(table.to_batches()) if table.to_batches() else rows_batch([])
    parts = split(batch, partitions, 65536)
    assert {partition: rows_of(part) for partition, part in parts} == expected
    assert [partition for partition, _ in parts] == sorted(expected)


@settings(deadline=None, max_examples=200)
@given(tables(), st.integers(1, 400))
def test_cut_keeps_every_change_and_the_size(case: tuple[list[Row], pa.Table], chunk_bytes: int) -> None:
    """Slices join to the batch, and only a slice of one change is larger than asked for."""
    for batch in case[1].to_batches():
        slices = chunk_slices(batch, chunk_bytes, 15 << 20)
        assert [row for piece in slices for row in piece.to_pylist()] == batch.to_pylist()
        for piece in slices:
            size = sum(int(row_sizes(column).sum()) for column in piece.columns)
            assert piece.num_rows == 1 or min(size, piece.nbytes) <= chunk_bytes
