"""`Stream`: the state of a log in portions, and then every later commit, if it follows.

    with recover(log).stream() as stream:
        for changes, cursor in stream:
            target.apply(changes)             # columns key_group, op, key, value
            checkpoint.save(cursor.to_json())

A portion counts as applied once the next one is asked for. Belongs to one thread; `stop` may be called from any.

Invariants:
- Portions come in order: the state by (key group, key), an empty portion that says that it is complete, then commits.
  A commit may take several; `cursor.is_complete` says where the reader has the state of a position, and no part more.
- Every portion is right. But the state is only whole when `cursor.is_complete` says so: after an error in between, the
  reader has a part of it, and goes on with `recover(log, resume=cursor)`.
- Closed, dropped or failed, it leaves neither a lease nor a byte on the disk. Dropped, it warns as a file does.
- A fork of the process that made it neither uses nor closes it.
"""

import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa

from statelog.closing import Closing
from statelog.recovery.cursor import Applied, Cursor, decode_frame
from statelog.recovery.plan_reader import Phase
from statelog.recovery.progress import Monitor
from statelog.recovery.read_ahead import ReadAhead
from statelog.storage.local.spill_queue import SpillStatistics

_UNCLOSED = "unclosed stream of statelog: close it, or take from it in a with block"


class Portion(NamedTuple):
    """Changes (key_group, op, key, value) to apply in order, and how far the reader is once it has applied them.

    A portion may be empty: then the state is complete, or a commit changed nothing.
    """

    changes: pa.Table
    cursor: Cursor


class Stream(Closing):
    """Made by `Recovery.stream` and `Recovery.follow`. Its monitor is used in the consumer's thread."""

    def __init__(self, read_ahead: ReadAhead, monitor: Monitor) -> None:
        self._read_ahead = read_ahead
        self._monitor = monitor
        self._cursor = read_ahead.origin
        self._handed_out: Cursor | None = None
        self._rows = 0
        self._has_ended = False
        self._forgotten = weakref.finalize(self, _drop_forgotten, read_ahead)
        read_ahead.start()

    # ---- taking

    def take(self, timeout_s: float | None = None) -> Portion | None:
        """The next portion; None if there is none, or none came in time: `has_ended` tells which.

        What was taken before counts as applied.
        Raises what fetching raised (DataLoss, Damaged, Unavailable, StorageFull above all), and ClosedError.
        """
        self._read_ahead.owner.check()
        if self._handed_out is not None:
            self._cursor, self._handed_out = self._handed_out, None
        if self._has_ended:
            return None
        data = self._read_ahead.queue.take(timeout_s)
        if data is None:
            if self._read_ahead.queue.is_drained:
                self._has_ended = True
                self.close()
            return None
        changes, applied = decode_frame(data)
        self._count(changes.num_rows, applied)
        self._handed_out = self._at(applied)
        return Portion(changes, self._handed_out)

    def __iter__(self) -> Iterator[Portion]:
        return self

    def __next__(self) -> Portion:
        portion = self.take()
        if portion is None:
            raise StopIteration
        return portion

    def apply(self, callback: Callable[[Portion], object]) -> Cursor:
        """Call `callback` with each portion, in this thread; returns what was applied at the end.

        Whatever the callback raises closes the stream, and is raised.
        """
        with self:
            for portion in self:
                callback(portion)
        return self._cursor

    # ---- where it is

    @property
    def cursor(self) -> Cursor:
        """What counts as applied: everything before the portion that was taken last."""
        return self._cursor

    @property
    def has_ended(self) -> bool:
        """Whether the last portion was taken."""
        return self._has_ended

    @property
    def is_fetched(self) -> bool:
        """Whether the whole state was read, and the log and the store are not needed for it any more."""
        return self._read_ahead.fetched.is_set()

    def wait_fetched(self, timeout_s: float | None = None) -> bool:
        """Wait until that is so, or fetching failed; False if it takes longer."""
        self._read_ahead.owner.check()
        return self._read_ahead.fetched.wait(timeout_s)

    def statistics(self) -> SpillStatistics:
        """What lies in memory and on the disk."""
        self._read_ahead.owner.check()
        return self._read_ahead.queue.statistics()

    @contextmanager
    def pending(self) -> Generator[Iterator[Portion]]:
        """What was fetched and is not applied, as it is now, the portion taken last first: for an own checkpoint.

        Its segments stay on the disk until the context is left, also if the stream goes on, or is closed.
        """
        self._read_ahead.owner.check()
        view = self._read_ahead.queue.view()
        try:
            yield (Portion(changes, self._at(applied)) for changes, applied in map(decode_frame, view))
        finally:
            view.close()

    # ---- life

    def stop(self) -> None:
        """End a stream that follows: what was fetched still comes out, and then nothing."""
        self._read_ahead.owner.check()
        self._read_ahead.stop()

    def close(self) -> None:
        """Release everything that was fetched, and wait until the thread has ended. Idempotent; void in a fork."""
        self._forgotten.detach()
        self._read_ahead.close()

    def _count(self, rows: int, applied: Applied) -> None:
        if self._cursor.applied.has_state:
            return
        self._rows += rows
        reader = self._read_ahead.reader
        assert reader is not None, "a portion of a state was read from somewhere"
        if applied.is_complete:
            self._monitor.done(reader, self._rows)
        else:
            phase = Phase.LOAD if self._read_ahead.fetched.is_set() else Phase.READ
            self._monitor.report(reader, phase, reader.share_through(applied.next_key_group))

    def _at(self, applied: Applied) -> Cursor:
        start = self._cursor
        return Cursor(identity=start.identity, applied=applied, key_groups=start.key_groups)


def _drop_forgotten(read_ahead: ReadAhead) -> None:
    """Clean up after a stream that was dropped without a close, and say so. In a fork it is the parent's."""
    if not read_ahead.owner.is_foreign:
        read_ahead.abandon()
        warnings.warn(_UNCLOSED, ResourceWarning, stacklevel=1)
