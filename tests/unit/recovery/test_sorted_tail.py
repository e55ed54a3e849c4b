"""The one external sort: the same tail in few streams and files, in bounded and counted memory.

Where memory is measured, the limits are scaled down by a thousand: 64 KiB instead of 64 MiB, and values up to a quarter
of that.
"""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import ClosedError
from statelog.reading import sorted_tail as module
from statelog.reading.sorted_tail import PartitionChanges, SortedTail
from statelog.schemas.changes.changes import cut_by_bytes, merge_tables
from statelog.store.merge import merge_streams
from tests.support.faults.spill import Disks
from tests.support.samples.chunks import rows_batch
from tests.support.samples.folds import rows_of

FOLD_BYTES = 64 << 10

_Row = tuple[int, int, bytes, bytes | None]


def _tail(disks: Disks, directory: Path, fold_bytes: int = FOLD_BYTES) -> SortedTail:
    return SortedTail(fold_bytes=fold_bytes, directories=(directory,), open_file=disks.open)


def _rows(tables: list[pa.Table]) -> list[_Row]:
    return [row for table in tables for row in rows_of(table)]


def test_many_spilled_streams_become_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail of a hundred folds has a handful of streams and files, and the last change of each key, also deletes."""
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    monkeypatch.setattr(module, "_LEAST_FRAME_BYTES", 4000)
    disks, expected, most = Disks(), dict[tuple[int, bytes], _Row](), 0
    tail = _tail(disks, tmp_path, fold_bytes=20_000)
    for number in range(100):
        rows: list[_Row] = [
            (key % 8, int((number + key) % 7 == 0), b"%05d" % key, None if (number + key) % 7 == 0 else b"x" * 300)
            for key in range(number * 30, number * 30 + 60)
        ]
        tail.add(0, rows_batch(rows))
        expected.update({(row[0], row[2]): row for row in rows})
        most = max(most, disks.open_files)
    assert len(disks.opened) > 50
    assert disks.open_files <= 12
    assert most <= 12 + 1
    found = _rows(list(merge_streams(tail.streams(), drop_deletes=False)))
    assert found == [expected[at] for at in sorted(expected)]
    tail.close()
    assert disks.open_files == 0


def test_a_tail_that_is_closed_takes_no_more(tmp_path: Path) -> None:
    """A tail that another thread closes during a spill refuses further chunks, and nothing remains on the disk."""
    disks = Disks()
    tail = _tail(disks, tmp_path, fold_bytes=10_000)
    closer = threading.Thread(target=tail.close)
    tail.add(0, rows_batch([(0, 0, b"%05d" % key, b"x" * 300) for key in range(100)]))
    assert disks.open_files == 1
    closer.start()
    closer.join()
    with pytest.raises(ClosedError):
        for key in range(100, 300):
            tail.add(0, rows_batch([(0, 0, b"%05d" % key, b"x" * 300)]))
    assert disks.open_files == 0


def test_small_chunks_count_with_what_they_hold() -> None:
    """A chunk of one change occupies kilobytes, and counts as such."""
    pile, rows = PartitionChanges(), [(0, 0, b"%05d" % key, b"v") for key in range(50)]
    for number, row in enumerate(rows, 1):
        pile.add(rows_batch([row]))
        assert pile.size_bytes >= number * 4096
    assert _rows(pile.tables) == rows


def test_chunks_are_not_copied() -> None:
    """Chunks are retained in place, without a copy."""
    pile, large = PartitionChanges(), rows_batch([(0, 0, b"b", b"x" * 100_000)])
    pile.add(rows_batch([(0, 0, b"a", b"1")]))
    pile.add(large)
    pile.add(rows_batch([(0, 0, b"c", b"1")]))
    tables = pile.tables
    assert [key for _, _, key, _ in _rows(tables)] == [b"a", b"b", b"c"]
    (column,) = tables[1].column("value").chunks
    kept, came = column.buffers()[2], large.column("value").buffers()[2]
    assert kept is not None
    assert came is not None
    assert kept.address == came.address


def _table(keys: list[int], value_bytes: int, mark: int) -> pa.Table:
    return pa.table(
        {
            "key_group": pa.array(np.zeros(len(keys), np.uint16)),
            "op": pa.array(np.zeros(len(keys), np.uint8)),
            "key": pa.array([b"%08d" % key for key in keys], pa.binary()),
            "value": pa.array([b"%03d" % mark + bytes(value_bytes - 3) for _ in keys], pa.binary()),
        }
    )


@pytest.mark.parametrize("value_bytes", [3, 200, 2 << 10, 16 << 10])
@pytest.mark.parametrize("count", [3, 40])
def test_a_merge_holds_half_of_the_limit_whatever_the_values(
    value_bytes: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of a merge takes more than half of the limit, with forty batches as large as that.

    The newest change wins.
    """
    largest = [0]

    def measured(tables: list[pa.Table], *, drop_deletes: bool) -> pa.Table:
        largest[0] = max(largest[0], sum(table.nbytes for table in tables))
        return merge_tables(tables, drop_deletes=drop_deletes)

    monkeypatch.setattr("statelog.store.merge.merge_tables", measured)
    monkeypatch.setattr(module, "_LEAST_FRAME_BYTES", 1)
    rows = max(2, min(FOLD_BYTES // value_bytes, 400))
    random, disks = np.random.default_rng(1), Disks()
    newest: dict[bytes, bytes] = {}
    with _tail(disks, tmp_path) as tail:
        for turn in range(count):
            table = _table(sorted(random.choice(5 * rows, rows, replace=False)), value_bytes, turn)
            newest.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
            tail.add(0, table.to_batches()[0], FOLD_BYTES + 1)
        last = _table([1, 2, 3], value_bytes, 999)
        newest.update(zip(last.column("key").to_pylist(), last.column("value").to_pylist(), strict=True))
        tail.add(0, last.to_batches()[0])
        tail.finish()
        assert disks.open_files <= 16
        merged = pa.concat_tables(list(merge_streams(tail.streams(), drop_deletes=False)))
    assert merged.column("key").to_pylist() == sorted(newest)
    assert merged.column("value").to_pylist() == [newest[key] for key in sorted(newest)]
    assert largest[0] <= max(FOLD_BYTES * 5 // 8, 3 * (value_bytes + 30))  # or a row of each of three
    assert disks.open_files == 0


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    """A hundred spills do not mean a hundred open files."""
    disks, most = Disks(), 0
    with _tail(disks, tmp_path) as tail:
        for turn in range(100):
            tail.add(0, _table([turn, 1000], 20 << 10, turn).to_batches()[0], FOLD_BYTES + 1)
            most = max(most, disks.open_files)
        tail.finish()
        assert sum(table.num_rows for table in merge_streams(tail.streams(), drop_deletes=False)) == 101
    assert most <= 2 * 16
    assert disks.open_files == 0


def test_a_step_of_a_merge_takes_no_more_than_it_may() -> None:
    """A limit of 200 KB cuts what is taken of forty tables of 64 KiB, down to one row of each stream."""
    tables = [_table(list(range(turn, 40 * 64, 40)), 1 << 10, turn) for turn in range(40)]
    pieces = list(merge_streams([[table] for table in tables], drop_deletes=False, most_bytes=200_000))
    assert max(piece.nbytes for piece in pieces) <= 200_000
    assert pa.concat_tables(pieces).column("key").to_pylist() == [b"%08d" % key for key in range(40 * 64)]


def test_cutting_by_bytes_keeps_the_order_and_ends_at_one_row() -> None:
    """Every slice of very different rows is within the limit, or is a single row."""
    table = pa.concat_tables([_table([1, 2], 10, 1), _table([3], 5000, 2), _table(list(range(4, 40)), 100, 3)])
    pieces = list(cut_by_bytes(table, 1000))
    assert pa.concat_tables(pieces).equals(table)
    assert all(piece.nbytes <= 1000 or piece.num_rows == 1 for piece in pieces)
