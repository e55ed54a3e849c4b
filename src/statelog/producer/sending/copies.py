"""`LocalCopies`: a writer's local copies of its change sets: when they are made, and when they go.

A committed change set stays in the tail that a recovery replays until a snapshot covers it, and so does its copy:

- persist registers it; from then on it is whole, or there is none.
- confirm drops nothing.
- reset drops what the aborted checkpoint and those before it hold, unless it is committed.
- truncate drops what is committed below its number.
- Above `local_copies_bytes_max` the oldest go first, those of earlier lives included: snapshots cover them first. Each
  counts as at least one disk block, which bounds the number of small ones, too.
- close drops what no checkpoint holds. A persisted handle may be adopted, so the copies of its change sets stay.

Invariant: whatever the local disk does, nothing here raises OSError.
"""

import contextlib
from collections import deque
from pathlib import Path

from statelog.producer.commits.grant import Grant
from statelog.producer.settings import WriterSettings
from statelog.producer.statistics import Meter
from statelog.storage.local.copy import LocalCopy, attempt_directory, copies_of_writer

__all__ = ["LocalCopies"]

_BLOCK_BYTES = 4096


class LocalCopies:
    """The copies of one writer, over all its epochs in this process. Makes none if the settings name no directory."""

    def __init__(self, settings: WriterSettings, meter: Meter, grant: Grant) -> None:
        self._directory = settings.local_copies
        self._bytes_max = settings.local_copies_bytes_max
        self._meter = meter
        self._kept: dict[int, LocalCopy] = {}
        self._kept_bytes = 0
        self._earlier: deque[tuple[Path, int]] = deque()
        if self._directory is not None:
            self._find_earlier(self._directory, grant)

    def new(self, grant: Grant, sqn: int) -> LocalCopy | None:
        """The copy of a change set that is about to be sent under `grant`."""
        if self._directory is None:
            return None
        descriptor = grant.descriptor
        directory = attempt_directory(self._directory, descriptor.name, grant.writer, grant.epoch, grant.nonce)
        self._kept[sqn] = LocalCopy(directory, sqn)
        return self._kept[sqn]

    def completed(self, sqn: int) -> None:
        """The change set `sqn` is durable, and its copy whole, or there is none."""
        copy = self._kept.get(sqn)
        if copy is None:
            return
        if copy.error is not None:
            self._meter.local_copy_failures += 1
            del self._kept[sqn]
        else:
            self._kept_bytes += _cost(copy.size_bytes)
        while self._kept_bytes > self._bytes_max and self._drop_oldest():
            pass

    def discard(self, first_sqn: int, end_sqn: int) -> None:
        """Remove the copies of the numbers from `first_sqn` to below `end_sqn`."""
        for sqn in [sqn for sqn in self._kept if first_sqn <= sqn < end_sqn]:
            self._drop(sqn)

    def _find_earlier(self, directory: Path, grant: Grant) -> None:
        try:
            for path in copies_of_writer(directory, grant.descriptor.name, grant.writer):
                cost = _cost(path.stat().st_size)
                self._earlier.append((path, cost))
                self._kept_bytes += cost
        except OSError:
            self._meter.local_copy_failures += 1

    def _drop_oldest(self) -> bool:
        if self._earlier:
            path, cost = self._earlier.popleft()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()  # An epoch's directory goes with its last copy; until then this is refused.
            self._kept_bytes -= cost
        elif self._kept:
            self._drop(next(iter(self._kept)))
        return bool(self._earlier or self._kept)

    def _drop(self, sqn: int) -> None:
        copy = self._kept.pop(sqn)
        self._kept_bytes -= _cost(copy.size_bytes)
        copy.discard()


def _cost(size_bytes: int) -> int:
    """What a copy counts for; nothing before it is whole."""
    return max(size_bytes, _BLOCK_BYTES) if size_bytes else 0
