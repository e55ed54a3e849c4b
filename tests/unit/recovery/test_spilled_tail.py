"""A tail that is sorted on the disk is the same tail, in few streams and files; and it counts what it holds."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import ClosedError
from statelog.recovery.reading.partition_changes import PartitionChanges
from statelog.recovery.reading.spilled_tail import SpilledTail
from statelog.recovery.spill.queue import SpillQueue
from statelog.storage.runs.merge import merge_streams
from tests.support.faults.spill import Disks
from tests.support.samples.chunks import rows_batch

_Row = tuple[int, int, bytes, bytes | None]


def _tail(disks: Disks, directory: Path, **options: Any) -> SpilledTail:
    def open_queue() -> SpillQueue:
        return SpillQueue(memory_bytes=0, segment_bytes=1 << 30, directories=(directory,), open_file=disks.open)

    return SpilledTail(frame_bytes=1000, open_queue=open_queue, **options)


def _rows(tables: list[pa.Table]) -> list[_Row]:
    return [row for table in tables for row in zip(*(table.column(i).to_pylist() for i in range(4)), strict=True)]


def test_many_spilled_streams_become_few(tmp_path: Path) -> None:
    """A tail of a hundred folds keeps a handful of streams and files, and the last change of each key, deletes too."""
    disks, expected, most = Disks(), dict[tuple[int, bytes], _Row](), 0
    tail = _tail(disks, tmp_path, fold_bytes=20_000, fan_in=4)
    for number in range(200):
        rows: list[_Row] = [
            (key % 8, int((number + key) % 7 == 0), b"%05d" % key, None if (number + key) % 7 == 0 else b"x" * 300)
            for key in range(number * 30, number * 30 + 60)
        ]
        tail.add(0, rows_batch(rows))
        expected.update({(row[0], row[2]): row for row in rows})
        most = max(most, disks.open_files)
    assert len(disks.opened) > 50
    assert tail.spilled_streams <= 12
    assert most <= 12 + 1
    found = _rows(list(merge_streams(tail.streams(), drop_deletes=False)))
    assert found == [expected[at] for at in sorted(expected)]
    tail.close()
    assert disks.open_files == 0


def test_a_tail_that_is_closed_takes_no_more(tmp_path: Path) -> None:
    """Closed by another thread in the middle of a spill, it refuses the rest, and nothing stays on the disk."""
    disks = Disks()
    tail = _tail(disks, tmp_path, fold_bytes=10_000)
    closer = threading.Thread(target=tail.close)
    tail.add(0, rows_batch([(0, 0, b"%05d" % key, b"x" * 300) for key in range(100)]))
    assert tail.spilled_streams == 1
    closer.start()
    closer.join()
    with pytest.raises(ClosedError):
        for key in range(100, 300):
            tail.add(0, rows_batch([(0, 0, b"%05d" % key, b"x" * 300)]))
    assert disks.open_files == 0


def test_small_chunks_count_with_what_they_hold_and_are_joined() -> None:
    """A chunk of one change is held as kilobytes, so it counts as such; once there are some, they become one table."""
    pile, rows = PartitionChanges(), [(0, 0, b"%05d" % key, b"v") for key in range(1000)]
    for number, row in enumerate(rows[:50], 1):
        pile.add(rows_batch([row]))
        assert pile.size_bytes >= number * 4096
    for row in rows[50:]:
        pile.add(rows_batch([row]))
    assert pile.size_bytes < 64 * 4096 * 2
    assert len(pile.tables()) <= 1000 // 64 + 1
    assert _rows(pile.tables()) == rows


def test_large_chunks_are_not_copied() -> None:
    """What is large is kept as it came, in its place between small ones."""
    pile, large = PartitionChanges(), rows_batch([(0, 0, b"b", b"x" * 100_000)])
    pile.add(rows_batch([(0, 0, b"a", b"1")]))
    pile.add(large)
    pile.add(rows_batch([(0, 0, b"c", b"1")]))
    tables = pile.tables()
    assert [key for _, _, key, _ in _rows(tables)] == [b"a", b"b", b"c"]
    (column,) = tables[1].column("value").chunks
    kept, came = column.buffers()[2], large.column("value").buffers()[2]
    assert kept is not None
    assert came is not None
    assert kept.address == came.address
