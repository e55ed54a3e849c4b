"""`SharedFollower`: the client that follows a ledger for all threads of a process: for verdicts, and for readers that
wait for a record.

One thread at a time waits at the broker, without any lock or turn. All threads share its records: the thread that folds
takes them, the others learn that there are new ones. A wait proves nothing: it tells the reader to read, and to compare
as always.

Invariants:
- `take` returns every record from the requested position on, or raises.
- An error in a thread that only waits ends the client and the wait. The reader's own read raises.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from weakref import WeakSet

from statelog.errors import StatelogError
from statelog.history.source import LedgerSource
from statelog.kafka.port import PartitionFollower, Record

_SLICE_S = 0.2
"""How long a thread waits at the broker before it checks whether it is to end."""
_IDLE_S = 60.0
"""How long the client is retained after its last use."""
_AGAIN_S = 5.0
"""How long after an error no new client is made for a wait."""


@dataclass(slots=True, eq=False)
class _Line:
    """A client, and its records that no thread has taken yet, from offset `start` to `end`."""

    client: PartitionFollower
    start: int
    end: int
    records: list[Record] = field(default_factory=list[Record])
    is_polled: bool = False
    is_over: bool = False
    is_sound: bool = True


class SharedFollower:
    """Follows one ledger. Makes its client at the first use, and closes it after an unused minute."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._changed = Condition()
        self._line: _Line | None = None
        self._used_s = self._failed_s = -math.inf
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def is_used(self) -> bool:
        """Whether there is a client that was used within the last minute."""
        return self._line is not None and self._source.clock() - self._used_s < _IDLE_S

    def take(self, position: int, timeout_s: float) -> tuple[list[Record], int]:
        """Return the records from a position on, and the position behind them. Wait at most so long for the first.
        Raises as `PartitionFollower.poll`.
        """
        line = self._line_at(position)
        self._listen(line, position, timeout_s)
        with self._changed:
            if line.start > position:  # A thread that only waits has dropped records.
                return [], position
            found, line.records, line.start = line.records, [], line.end
            return [one for one in found if one.offset >= position], line.end

    def wait(self, position: int, timeout_s: float, is_over: Callable[[], bool]) -> bool:
        """Wait at most so long until the ledger has a record at or above a position. Return whether to read now, also
        after an error or once the client is not sound.

        `is_over` is called every 0.2 s, and ends the wait.
        """
        if self._is_closed or self._source.clock() - self._failed_s < _AGAIN_S:
            return True
        try:
            while not is_over():
                line = self._line_at(position)
                self._listen(line, position, min(timeout_s, _SLICE_S))
                if self._is_due(line, position):
                    return True
                timeout_s -= _SLICE_S  # Not by the clock, which may stand still in a simulation.
                if timeout_s <= 0:
                    break
        except StatelogError:
            self._failed_s = self._source.clock()
            return True
        return False

    def _is_due(self, line: _Line, position: int) -> bool:
        """Return whether it is time to read. Drop the records below the position."""
        with self._changed:
            line.records = [one for one in line.records if one.offset >= position]
            line.start = max(line.start, min(position, line.end))
            return line.end > position or line.is_over or not line.is_sound or self._is_closed

    # ---- the client

    def _line_at(self, position: int) -> _Line:
        """Return a client that reads all records from a position on."""
        self._used_s = self._source.clock()
        line = self._line
        if line is not None and line.start <= position and not line.is_over:
            return line
        for one in list(_IN_USE):
            one.rest_if_idle()
        made = _Line(self._source.kafka.follower(self._source.topic, position), position, position)
        with self._changed:
            before, self._line = self._line, made
        _IN_USE.add(self)
        if before is not None:
            self._end(before)
        if self._is_closed:
            self.rest()
        return made

    def _listen(self, line: _Line, position: int, timeout_s: float) -> None:
        """Wait at most so long until the client is past a position: at the broker, unless another thread does."""
        with self._changed:
            if line.is_over or line.end > position:
                return
            if line.is_polled:
                self._changed.wait(timeout_s)
                return
            line.is_polled = True
        records, is_whole = list[Record](), False
        try:
            records += line.client.poll(timeout_s)
            is_whole = True
        finally:
            with self._changed:
                line.records += records
                line.end, line.is_sound = max(line.end, line.client.position), line.client.is_sound
                line.is_polled, line.is_over = False, line.is_over or not is_whole
                if line.is_over:
                    self._drop(line)
                self._changed.notify_all()
            if line.is_over:
                line.client.close()

    # ---- its end

    def rest_if_idle(self) -> None:
        """Close the client if no thread has used it for a minute."""
        if not self.is_used and self._pid == os.getpid():
            self.rest()

    def rest(self) -> None:
        """Close the client, or let the thread that waits with it do so. The next use makes another one."""
        line = self._line
        if line is not None:
            self._end(line)

    def close(self) -> None:
        """Close the client, and end all waits. Idempotent."""
        self._is_closed = True
        self.rest()

    def _end(self, line: _Line) -> None:
        with self._changed:
            is_free = not line.is_over and not line.is_polled
            line.is_over = True
            self._drop(line)
            self._changed.notify_all()
        if is_free:
            line.client.close()

    def _drop(self, line: _Line) -> None:
        if self._line is line:
            self._line = None
            _IN_USE.discard(self)


_IN_USE: "WeakSet[SharedFollower]" = WeakSet()
"""The followers of this process that have a client. To make another one closes the idle ones."""
