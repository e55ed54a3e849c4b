"""`SpilledTail`: a tail of any size as sorted streams: folded in memory, and spilled when that is full.

An external sort: whenever more than `fold_bytes` of newest changes have piled up, they go to disk as one sorted stream.
The merge of all of them, oldest first, is the tail by (key group, key). Neighbouring streams of one size are merged
into one as soon as there are `fan_in` of them, so their number, and that of open files, grows with the logarithm of the
tail.

Invariants:
- Deletes are kept, because what is merged below may hold what they delete.
- Memory holds about three times `fold_bytes`, while what has piled up is sorted.
- One thread adds; another may close meanwhile, and then the next add is refused and nothing stays on the disk.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa

from statelog.errors import ClosedError
from statelog.recovery.reading.newest import newest
from statelog.recovery.reading.partition_changes import PartitionChanges
from statelog.recovery.spill.frame import Applied, cut_to_frames, decode_frame, encode_frame
from statelog.recovery.spill.queue import SpillQueue
from statelog.schemas.changes.changes import newest_sorted
from statelog.schemas.ledger.place import ORIGIN
from statelog.storage.runs.merge import merge_streams

__all__ = ["SpilledTail"]

_NOWHERE = Applied(ORIGIN)
_FAN_IN = 32
_MOST_BYTES = 1 << 30
"""What is sorted at once: half of what one Arrow array can hold."""


@dataclass(frozen=True, slots=True)
class _Spilled:
    """A sorted stream on the disk, and how often it was merged."""

    queue: SpillQueue
    level: int = 0


class SpilledTail:
    """The changes of a tail, added in offset order. `open_queue` makes a queue that keeps nothing in memory."""

    def __init__(
        self, *, fold_bytes: int, frame_bytes: int, open_queue: Callable[[], SpillQueue], fan_in: int = _FAN_IN
    ) -> None:
        self._fold_bytes = min(fold_bytes, _MOST_BYTES)
        self._frame_bytes = frame_bytes
        self._open_queue = open_queue
        self._fan_in = fan_in
        self._piles: dict[int, PartitionChanges] = {}
        self._held_bytes = 0
        self._spilled: list[_Spilled] = []
        self._lock = Lock()  # Held while queues come and go, never while they are written or read.
        self._is_closed = False

    def add(self, partition: int, changes: pa.RecordBatch) -> None:
        """The next changes of a partition. Raises StorageFull, StoreUnavailable, ClosedError."""
        if not changes.num_rows:
            return
        pile = self._piles.setdefault(partition, PartitionChanges())
        before = pile.size_bytes
        pile.add(changes)
        self._held_bytes += pile.size_bytes - before
        if self._held_bytes > self._fold_bytes:
            self._fold()

    def streams(self) -> list[Iterator[pa.Table]]:
        """Sorted streams of what was added, oldest first, one row for each key in each. To be read once."""
        return [*(_drain(spilled.queue) for spilled in self._spilled), self._sorted()]

    @property
    def spilled_streams(self) -> int:
        """How many streams are on disk."""
        return len(self._spilled)

    def close(self) -> None:
        """Release the disk. Idempotent."""
        with self._lock:
            self._is_closed = True
            for spilled in self._spilled:
                spilled.queue.close()

    def _fold(self) -> None:
        """Fold; if that freed less than half, spill, because the next fold would come too soon."""
        for pile in self._piles.values():
            pile.replace(newest(pile.tables(), keep_deletes=True))
        self._held_bytes = sum(pile.size_bytes for pile in self._piles.values())
        if self._held_bytes > self._fold_bytes // 2:
            self._spill(self._sorted(), level=0)
            self._held_bytes = 0
            self._merge_spilled()

    def _merge_spilled(self) -> None:
        """Merge the newest streams if there are enough of one level; that may complete the level above."""
        while len(last := self._spilled[-self._fan_in :]) == self._fan_in and last[0].level == last[-1].level:
            tables = merge_streams([_drain(spilled.queue) for spilled in last], drop_deletes=False)
            self._spill(tables, level=last[-1].level + 1)
            with self._lock:
                del self._spilled[-self._fan_in - 1 : -1]

    def _spill(self, tables: Iterable[pa.Table], *, level: int) -> None:
        queue = self._open_queue()
        with self._lock:
            if self._is_closed:
                raise ClosedError("a tail was added to after it was closed")
            self._spilled.append(_Spilled(queue, level))
        for batch in cut_to_frames(tables, self._frame_bytes):
            queue.put(encode_frame(batch, _NOWHERE))
        queue.end()

    def _sorted(self) -> Iterator[pa.Table]:
        """What is in memory, by partition, each released before the next is sorted."""
        for partition in sorted(self._piles):
            yield newest_sorted(pa.concat_tables(self._piles.pop(partition).tables()).combine_chunks())


def _drain(queue: SpillQueue) -> Iterator[pa.Table]:
    while (data := queue.take()) is not None:
        yield decode_frame(data)[0]
    queue.close()
