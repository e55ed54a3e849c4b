"""The tail of a log as sorted streams, however large it is: folded in memory, and spilled sorted when that is full.

An external sort: whenever more than `fold_bytes` of newest changes have piled up, they go to disk as one sorted stream.
The merge of all of them, oldest first, is the tail by (key group, key).

Invariant: deletes are kept, because what is merged below may hold what they delete.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from statelog.recovery.applied import Place
from statelog.recovery.fold import newest
from statelog.recovery.portion import cut_to_frames, decode_frame, encode_frame
from statelog.recovery.spill import SpillQueue
from statelog.schemas.changes import newest_sorted

__all__ = ["SpilledTail"]

_NOWHERE = Place(0)


class SpilledTail:
    """The changes of a tail, added in offset order. `open_queue` makes a queue that keeps nothing in memory."""

    def __init__(self, *, fold_bytes: int, frame_bytes: int, open_queue: Callable[[], SpillQueue]) -> None:
        self._fold_bytes = fold_bytes
        self._frame_bytes = frame_bytes
        self._open_queue = open_queue
        self._tables: dict[int, list[pa.Table]] = {}
        self._pending_bytes = 0
        self._spilled: list[SpillQueue] = []

    def add(self, partition: int, changes: pa.RecordBatch) -> None:
        """The next changes of a partition. Raises StorageFull, StoreUnavailable."""
        if not changes.num_rows:
            return
        self._tables.setdefault(partition, []).append(pa.Table.from_batches([changes]))
        self._pending_bytes += changes.nbytes
        if self._pending_bytes > self._fold_bytes:
            self._fold()

    def streams(self) -> list[Iterator[pa.Table]]:
        """Sorted streams of what was added, oldest first, one row for each key in each. To be read once."""
        return [*(_drain(queue) for queue in self._spilled), self._sorted()]

    @property
    def spilled_streams(self) -> int:
        """How many streams went to disk."""
        return len(self._spilled)

    def close(self) -> None:
        """Let go of the disk. Idempotent."""
        for queue in self._spilled:
            queue.close()

    def _fold(self) -> None:
        """Fold; if that freed less than half, spill, because the next fold would come too soon."""
        self._tables = {p: newest(tables, keep_deletes=True) for p, tables in self._tables.items()}
        self._pending_bytes = sum(table.nbytes for tables in self._tables.values() for table in tables)
        if self._pending_bytes > self._fold_bytes // 2:
            self._spill()

    def _spill(self) -> None:
        queue = self._open_queue()
        self._spilled.append(queue)
        for batch in cut_to_frames(self._sorted(), self._frame_bytes):
            queue.put(encode_frame(batch, _NOWHERE))
        queue.end()
        self._pending_bytes = 0

    def _sorted(self) -> Iterator[pa.Table]:
        """What is in memory, by partition, each let go before the next is sorted."""
        for partition in sorted(self._tables):
            yield newest_sorted(pa.concat_tables(self._tables.pop(partition)).combine_chunks())


def _drain(queue: SpillQueue) -> Iterator[pa.Table]:
    while (data := queue.take()) is not None:
        yield decode_frame(data)[0]
    queue.close()
