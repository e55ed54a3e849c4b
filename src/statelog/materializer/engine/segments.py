"""Sorted segments: what one partition's fold cannot hold, in files of the scratch directory, merged again as a stream.

Segments lie oldest first, each with one row per key. Whenever `fanout` neighbours of one size have come together they
are merged into one of the next size, so that never more than a few files are read at once, however much is folded.

Invariants:
- A segment is written in batches of at most `fold_bytes / 32` (or one row), and a merge loads one batch of each of its
  segments: together at most half of `fold_bytes`, whatever the size of keys and values, unless two rows exceed that.
- Only neighbours merge, so later changes win.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from statelog.closing import Closing
from statelog.environment import DiskHook, no_faults
from statelog.schemas.changes.changes import cut_by_bytes
from statelog.storage.local.disk import local_disk
from statelog.storage.runs.merge import merge_streams

__all__ = ["Segments"]

_BATCHES = 32
_BATCH_ROWS = 32 * 1024
_MOST_AT_ONCE = 16


class _Segment(NamedTuple):
    path: Path
    tier: int
    batch_bytes: int  # of its largest batch


class Segments(Closing):
    """The spilled part of a fold, oldest first. As a context manager it removes its files on leaving."""

    def __init__(self, scratch: Path, fold_bytes: int, disk: DiskHook = no_faults) -> None:
        self._scratch = scratch
        self._disk = disk
        self._fold_bytes = fold_bytes
        self._segments: list[_Segment] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, table: pa.Table) -> None:
        """Write a sorted table that is newer than all before. Raises StorageFull, StoreUnavailable for the disk."""
        self._segments.append(self._write(iter([table]), tier=0))
        del table  # A merge may follow, and needs the memory.
        while (count := self._full_tier()) > 0:
            self._merge_last(count)

    def merged(self, last: list[pa.Table]) -> Iterator[pa.Table]:
        """All of it, with sorted tables that are newer still (at most one of them), as one sorted stream."""
        while len(self._segments) > (fanout := self._fanout(self._segments)):
            self._merge_last(fanout)
        newest = (piece for table in last for piece in cut_by_bytes(table, self._batch_bytes))
        with ExitStack() as opened:
            streams = [opened.enter_context(closing(_read(segment.path))) for segment in self._segments]
            yield from merge_streams([*streams, newest], drop_deletes=False)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        while self._segments:
            self._segments.pop().path.unlink(missing_ok=True)

    @property
    def _batch_bytes(self) -> int:
        return max(1, self._fold_bytes // _BATCHES)

    def _fanout(self, segments: list[_Segment]) -> int:
        """How many segments may be read at once: half of `fold_bytes` holds a batch of each."""
        largest = max((segment.batch_bytes for segment in segments), default=1)
        return max(2, min(_MOST_AT_ONCE, self._fold_bytes // (2 * max(1, largest))))

    def _full_tier(self) -> int:
        """How many of the last segments are a tier that is full; 0 if it is not."""
        tier = self._segments[-1].tier
        members = [segment for segment in self._segments if segment.tier == tier]
        return len(members) if len(members) >= self._fanout(members) else 0

    def _merge_last(self, count: int) -> None:
        """Merge the last `count` segments into one of the next tier."""
        old = self._segments[-count:]
        with ExitStack() as opened:
            streams = [opened.enter_context(closing(_read(segment.path))) for segment in old]
            tables = merge_streams(streams, drop_deletes=False)
            merged = self._write(tables, tier=1 + max(segment.tier for segment in old))
        self._segments[-count:] = [merged]
        for segment in old:
            segment.path.unlink()

    def _write(self, tables: Iterator[pa.Table], tier: int) -> _Segment:
        path, largest = self._scratch / f"segment-{self._made}.arrow", 0
        self._made += 1
        first = next(tables)
        try:
            with (
                local_disk(path, "open", self._disk),
                pa.OSFile(str(path), "wb") as file,
                pa.ipc.new_file(file, first.schema) as writer,
            ):
                for table in chain([first], tables):
                    for piece in cut_by_bytes(table, self._batch_bytes):
                        self._disk("write", path)
                        writer.write_table(piece, max_chunksize=_BATCH_ROWS)
                        largest = max(largest, piece.nbytes)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return _Segment(path, tier, largest)


def _read(path: Path) -> Generator[pa.Table]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])
