"""`SpillQueue`: a FIFO queue between two threads, in memory up to a budget and on disk above it.

One thread puts, another takes. A frame that was taken counts as memory until the next take; then it counts as applied.

Invariants:
- Order: memory is always older than disk. While a frame is on disk, new ones go to disk, too.
- Memory: the queued frames and the one that was taken last never exceed `memory_bytes` together. A single larger frame
  passes alone.
- `put` never waits for the consumer; `offer` never spills.
- Segments are sealed at `segment_bytes`, rotate over the directories, and are released when their last frame was taken
  and no view holds them. When the queue fails or is closed, everything is released immediately.
- Each segment is an open file. So with every 32 of them the next ones are twice as large. If the process may open no
  more files, the last one grows instead.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

from statelog.closing import Closing, undone_by_errors
from statelog.environment import OpenSpillFile
from statelog.errors import ClosedError, StorageFull, StoreUnavailable
from statelog.store.disk.disk import NO_MORE_FILES
from statelog.store.disk.spill import NamelessFile, SpillDirectories, SpillSegment

_FEW_SEGMENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillStatistics:
    """A queue in numbers: bytes in memory, their peak, bytes on disk, and all bytes and segments ever spilled."""

    memory_bytes: int
    peak_memory_bytes: int
    disk_bytes: int
    spilled_bytes: int
    segments: int


class SpillQueue:
    """A FIFO queue between two threads. Raises ConfigError for unusable directories."""

    def __init__(
        self,
        *,
        memory_bytes: int,
        segment_bytes: int,
        directories: tuple[Path, ...],
        open_file: OpenSpillFile | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._segment_bytes = segment_bytes
        self._directories = SpillDirectories(directories, open_file or NamelessFile)
        # One lock, also held during I/O: a frame is small, and no file can be closed while it is written.
        self._changed = Condition()
        self._memory: deque[memoryview] = deque()
        self._disk: deque[SpillSegment] = deque()
        self._next_offset = 0
        self._in_hand: memoryview | None = None
        self._used_bytes = 0
        self._peak_bytes = 0
        self._spilled_bytes = 0
        self._segments = 0
        self._has_ended = False
        self._is_closed = False
        self._error: BaseException | None = None

    # ---- the producer

    def put(self, data: memoryview) -> None:
        """Add a frame, on disk if memory is full. Raises StorageFull, StoreUnavailable, ClosedError."""
        with self._changed:
            self._check_open()
            if self._disk or self._used_bytes + data.nbytes > self._memory_bytes:
                self._spill(data)
            else:
                self._add_to_memory(data)
            self._changed.notify_all()

    def offer(self, data: memoryview, timeout_s: float) -> bool:
        """Add a frame to memory. Return False if there was no room in time. Raises ClosedError."""
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._is_closed or self._has_room(data), timeout_s)
            self._check_open()
            if has_room:
                self._add_to_memory(data)
                self._changed.notify_all()
        return has_room

    def end(self) -> None:
        """Mark the end: nothing more will be put."""
        with self._changed:
            self._has_ended = True
            if self._disk and not self._disk[-1].is_sealed:
                self._disk[-1].seal()
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Release everything; the consumer gets the error."""
        with self._changed:
            self._error = error
            self._release_all()

    # ---- the consumer

    def take(self, timeout_s: float | None = None) -> memoryview | None:
        """Return the oldest frame; None at the end, or if nothing was put in time. A failed read can be repeated.

        Raises the error of the producer, Corrupt, StoreUnavailable, ClosedError.
        """
        with self._changed:
            if self._in_hand is not None:
                self._used_bytes -= self._in_hand.nbytes
                self._in_hand = None
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_frame or self._is_over, timeout_s)
            self._check_open()
            if self._error is not None:
                raise self._error
            if not self._has_frame:
                return None
            self._take_up()
            return self._in_hand

    @property
    def in_hand(self) -> memoryview | None:
        """The frame that was taken last, until the next one is taken."""
        return self._in_hand

    def view(self) -> "SpillView":
        """Return the frames that are not applied yet, the one in hand first, for a checkpoint while draining."""
        with self._changed:
            self._check_open()
            frames = ([] if self._in_hand is None else [self._in_hand]) + list(self._memory)
            held = [(segment.hold(), segment.end_offset) for segment in self._disk]
            return SpillView(frames, held, self._next_offset)

    @property
    def is_drained(self) -> bool:
        """Whether the end was put, and everything was taken."""
        with self._changed:
            return self._has_ended and not self._has_frame

    # ---- both

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def statistics(self) -> SpillStatistics:
        """Return the statistics now."""
        with self._changed:
            return SpillStatistics(
                memory_bytes=self._used_bytes,
                peak_memory_bytes=self._peak_bytes,
                disk_bytes=sum(segment.end_offset for segment in self._disk),
                spilled_bytes=self._spilled_bytes,
                segments=self._segments,
            )

    def close(self) -> None:
        """Release everything, except for the segments that a view holds. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._release_all()

    # ---- with the lock held

    @property
    def _has_frame(self) -> bool:
        return bool(self._memory or self._disk)

    @property
    def _is_over(self) -> bool:
        return self._has_ended or self._is_closed or self._error is not None

    def _has_room(self, data: memoryview) -> bool:
        fits = self._used_bytes + data.nbytes <= self._memory_bytes or self._used_bytes == 0
        return fits and not self._disk

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("a spill queue was used after it was closed")

    def _add_to_memory(self, data: memoryview) -> None:
        self._memory.append(data)
        self._used_bytes += data.nbytes
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)

    def _spill(self, data: memoryview) -> None:
        """Append to the last segment, or to a new one if it is full or its directory is."""
        last = self._disk[-1] if self._disk else None
        if last is None:
            self._spill_to_new(data)
        elif last.end_offset < self._segment_bytes << len(self._disk) // _FEW_SEGMENTS:
            self._spill_to_last(last, data)
        else:
            try:
                self._spill_to_new(data)
            except StoreUnavailable as error:
                if error.facts.get("code") not in NO_MORE_FILES:
                    raise
                self._spill_to_last(last, data)
        self._spilled_bytes += data.nbytes

    def _spill_to_last(self, last: SpillSegment, data: memoryview) -> None:
        try:
            last.append(data)
        except StorageFull:
            self._spill_to_new(data)

    def _spill_to_new(self, data: memoryview) -> None:
        """Begin a segment with the frame, and seal the one before."""
        segment = self._directories.begin(data)
        if self._disk:
            with undone_by_errors(segment.release):
                self._disk[-1].seal()
        self._disk.append(segment)
        self._segments += 1

    def _take_up(self) -> None:
        """Take the oldest frame in hand before removing it: after an interrupt it is taken again, and never lost."""
        if self._memory:
            self._in_hand = self._memory[0]
            self._memory.popleft()
            return
        oldest = self._disk[0]
        data, next_offset = oldest.read(self._next_offset)
        self._in_hand, self._used_bytes = data, self._used_bytes + data.nbytes  # So that an interrupt counts it.
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        if next_offset < oldest.end_offset:
            self._next_offset = next_offset
            return
        self._next_offset = 0
        try:
            self._disk.popleft()
        finally:
            oldest.release()

    def _release_all(self) -> None:
        self._memory.clear()
        self._in_hand = None
        self._used_bytes = 0
        self._next_offset = 0
        while self._disk:
            self._disk.popleft().release()
        self._changed.notify_all()


class SpillView(Closing):
    """The frames of a queue at one moment, oldest first. Holds their segments until it is closed."""

    def __init__(self, frames: list[memoryview], held: list[tuple[SpillSegment, int]], next_offset: int) -> None:
        self._frames = frames
        self._held = held
        self._next_offset = next_offset
        self._is_closed = False

    def __iter__(self) -> Iterator[memoryview]:
        """Iterate from the first frame, every time. Raises Corrupt, StoreUnavailable, ClosedError."""
        self._check_open()
        yield from self._frames
        offset = self._next_offset
        for segment, end_offset in self._held:
            while offset < end_offset:
                self._check_open()
                data, offset = segment.read(offset)
                yield data
            offset = 0

    def close(self) -> None:
        """Release the segments. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for segment, _ in self._held:
                segment.release()
            self._frames = []

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("a view of a spill queue was used after it was closed")
