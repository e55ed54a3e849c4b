"""Merges of runs against a plain dict, and damaged runs, which no reader believes."""

import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CorruptRun
from statelog.schemas.changes.changes import merge_tables
from statelog.schemas.snapshot.runs import RowGroupPacker, RunFile, first_unsorted
from statelog.store.merge import merge_streams
from statelog.store.run_reader import RunReader, read_back, read_back_written
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.samples.folds import Row, rows_of
from tests.support.samples.runs import change_table, table_of, write_run

BYTES = st.binary(max_size=4) | st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff" * 80, b"\xff" * 81])
TEXT = st.text(max_size=3) | st.sampled_from(["", "\0", "a", "a\0", "\U0001f600", "￿", "x" * 70])
LONGS = st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, -(2**32), 2**32])
KINDS = {"bytes": (BYTES, pa.binary()), "text": (TEXT, pa.string()), "longs": (LONGS, pa.int64())}


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[Row]], pa.DataType]:
    """Draw a few runs of changes, oldest first, each with one change per (key group, key), and their key type."""
    keys, key_type = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    place = st.tuples(st.integers(0, 3), keys)
    values = st.one_of(st.none(), st.binary(max_size=3))
    made = draw(st.lists(st.dictionaries(place, values, max_size=12), min_size=1, max_size=4))
    return [[(g, int(v is None), k, v) for (g, k), v in run.items()] for run in made], key_type


def _folded(all_runs: list[list[Row]], *, drop_deletes: bool) -> dict[tuple[int, object], Row]:
    state = {(change[0], change[2]): change for run in all_runs for change in run}
    return {place: change for place, change in state.items() if not (drop_deletes and change[1])}


@settings(deadline=None)
@given(runs(), st.booleans())
def test_merge_is_the_fold(given_runs: tuple[list[list[Row]], pa.DataType], drop_deletes: bool) -> None:
    """A merge has exactly the newest change of every key, sorted, with or without deletes."""
    all_runs, key_type = given_runs
    merged = merge_tables([change_table(run, key_type) for run in all_runs], drop_deletes=drop_deletes)

    assert first_unsorted(merged) is None
    assert {(c[0], c[2]): c for c in rows_of(merged)} == _folded(all_runs, drop_deletes=drop_deletes)


@settings(deadline=None)
@given(runs(), st.booleans(), st.lists(st.integers(1, 5), min_size=4, max_size=4), st.sampled_from([1, 60, 1 << 30]))
def test_streamed_merge_is_the_merge(
    given_runs: tuple[list[list[Row]], pa.DataType], drop_deletes: bool, steps: list[int], most_bytes: int
) -> None:
    """A merge that streams pieces of any size, with any bound, gives the rows of the whole."""
    all_runs, key_type = given_runs
    tables = [change_table(run, key_type) for run in all_runs]
    streams = [
        [table.slice(start, step) for start in range(0, table.num_rows, step)]
        for table, step in zip(tables, steps, strict=False)
    ]
    pieces = list(merge_streams(streams, drop_deletes=drop_deletes, most_bytes=most_bytes))

    assert [change for piece in pieces for change in rows_of(piece)] == rows_of(
        merge_tables(tables, drop_deletes=drop_deletes)
    )


@settings(deadline=None)
@given(runs(), st.integers(1, 6))
def test_packing_loses_nothing(given_runs: tuple[list[list[Row]], pa.DataType], target: int) -> None:
    """Row groups hold all rows in order, and a key group is in two of them only if it is larger than one."""
    table = change_table(given_runs[0][0], given_runs[1])
    packer = RowGroupPacker(target)
    packed = [*packer.add(table), *packer.finish()]

    assert [change for group in packed for change in rows_of(group)] == rows_of(table)
    counts = table.column("key_group").to_pylist()
    for key_group in set(counts):
        holders = [group for group in packed if key_group in group.column("key_group").to_pylist()]
        assert len(holders) == 1 or counts.count(key_group) > target


@cache
def _sample() -> tuple[bytes, RunFile, pa.Table]:
    places = [(group, i) for group in range(4) for i in range(10)]
    table = change_table((group, i % 2, b"key-%03d" % i, None if i % 2 else b"v%d" % i) for group, i in places)
    store = MemoryStore(MemoryDisk(lambda: 0.0), "orders")
    with tempfile.TemporaryDirectory() as directory:
        run = write_run(store, Path(directory), [table], target_rows=10)
    assert len(run.index.row_groups) == 4
    return store.read(run.path), run, table


def _damaged_store(data: bytes, run: RunFile) -> MemoryStore:
    store = MemoryStore(MemoryDisk(lambda: 0.0), "orders")
    if data:
        store.put(run.path, data)
    return store


def _believed(data: bytes, wanted: range) -> pa.Table | None:
    """Return a reader's table of a damaged file, or None if it noticed."""
    _, run, _ = _sample()
    try:
        with RunReader(_damaged_store(data, run).open(run.path), run) as reader:
            return table_of(reader, wanted)
    except CorruptRun as error:
        assert error.facts["path"] == run.path
        return None


def test_every_flipped_byte_is_noticed_or_harmless() -> None:
    """With any byte of the file changed, pruned reads give the right rows or CorruptRun, and a full one notices."""
    data, run, table = _sample()
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]
        believed = _believed(damaged, range(1, 2))
        assert believed is None or believed.equals(table.slice(10, 10))
        for read in (read_back, read_back_written):
            with pytest.raises(CorruptRun):
                read(_damaged_store(damaged, run), run)


@settings(deadline=None)
@given(st.data())
def test_cut_and_grown_files_are_noticed(data: st.DataObject) -> None:
    """A file that is shorter or longer than its facts say is never read, whatever part is wanted."""
    whole, _, _ = _sample()
    cut = data.draw(st.integers(1, len(whole) - 1))

    assert _believed(whole[:cut], range(1, 2)) is None
    assert _believed(whole + whole[-cut:], range(1, 2)) is None
    assert _believed(whole[cut:] + whole[:cut], range(4)) is None
