"""`RunHandles`: one run, read by row group from several threads, each with its own open file.

Invariants:
- A file serves one thread at a time; it is kept for the next one that asks.
- After `close` no file stays open: one that is in use is closed by the thread that uses it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import BinaryIO

import pyarrow as pa

from statelog.errors import ClosedError
from statelog.recovery.cache.opener import OneRun
from statelog.schemas.snapshot.runs import RunFile
from statelog.storage.runs.read import KeyBounds, RunReader

__all__ = ["RunHandles"]


class RunHandles:
    """The open files of a run, which `opening` opens. Thread-safe; closed by its maker."""

    def __init__(self, run: RunFile, opening: Callable[[RunFile], AbstractContextManager[BinaryIO]]) -> None:
        self._source = OneRun(run, opening)
        self._lock = Lock()
        self._idle: list[RunReader] = []
        self._is_closed = False

    def row_groups(self, numbers: Sequence[int], wanted: Collection[int] | None) -> list[pa.Table]:
        """The changes of the wanted key groups (None: all) of some row groups, a table for each, verified.

        Raises CorruptRun, NotFound, StoreUnavailable, ClosedError.
        """
        reader = self._take()
        try:
            return [reader.row_group(number, wanted) for number in numbers]
        finally:
            self._put_back(reader)

    def key_bounds(self) -> list[KeyBounds | None]:
        """The bounds of the keys of each row group, as the verified footer has them. Raises as `row_groups`."""
        reader = self._take()
        try:
            return reader.key_bounds()
        finally:
            self._put_back(reader)

    def close(self) -> None:
        """Close what is open. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _take(self) -> RunReader:
        with self._lock:
            if self._is_closed:
                raise ClosedError("a run was read after it was closed")
            if self._idle:
                return self._idle.pop()
        return RunReader(self._source, self._source.run)

    def _put_back(self, reader: RunReader) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(reader)
                return
        reader.close()
