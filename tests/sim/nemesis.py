"""The nemesis of a story: counts every port operation of all its processes, and lets chosen ones fail or kill.

It owns the list of operations and the faults that are played on them. It knows neither the story nor what is right.

A process dies at an operation by `Crash`. Its later attempts on the way out (to remove a lease, to close a producer) do
not happen: a dead process does nothing. The story says which process acts; one acts at a time.
"""

import errno
import inspect
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from statelog.testing import Crash
from statelog.testing.faults import (
    HALF,
    LOST,
    TRUE,
    UNAVAILABLE,
    Answer,
    Call,
    Fate,
    SendAttempt,
    broken,
    old,
)
from statelog.testing.store import Fault

__all__ = ["Kind", "Nemesis", "Operation"]


class Kind(Enum):
    """The fate of one operation."""

    BEFORE = "failed-before"
    AFTER = "failed-after"
    OLD = "old-answer"
    OLDER = "older-answer"
    CRASH_BEFORE = "crash-before"
    CRASH_AFTER = "crash-after"
    HALF = "half-answer"
    """An offset is missing in the answer."""
    BROKEN = "broken-off"
    """A read ends after one record."""
    FATAL = "fatal"
    """The producer has failed for good, and the record was appended, or was not, in alternation."""
    LATE = "late"
    """A write to the store takes effect at the end of the scene."""


_STORE_WRITES = frozenset({"put_if_absent", "put", "upload", "delete"})
_OUTPUTS = frozenset({"init_transactions", "flush", "send_offsets", "commit_transaction", "abort_transaction"})
_WRITES = _STORE_WRITES | _OUTPUTS | {"create_topic", "delete_records", "publish_offset", "poll", "send"}
_DISK = frozenset({"disk_make", "disk_open", "disk_write", "disk_verify"})
_POINT = frozenset({"point"})
_KINDS = {
    Kind.OLD: frozenset({"offsets", "describe_topic"}),
    Kind.OLDER: frozenset({"offsets"}),
    Kind.HALF: frozenset({"offsets"}),
    Kind.BROKEN: frozenset({"read"}),
    Kind.FATAL: frozenset({"send"}),
    Kind.LATE: _STORE_WRITES,
    Kind.AFTER: _WRITES,
    Kind.CRASH_BEFORE: _WRITES | _DISK | _POINT,
    Kind.CRASH_AFTER: _WRITES,
}
"""The operations where a kind has a meaning of its own. A query that fails after its effect equals one that fails
before, and a death at a query equals one after the write before it.
"""
_ANSWERS = {
    Kind.BEFORE: UNAVAILABLE,
    Kind.AFTER: LOST,
    Kind.OLD: old(1),
    Kind.OLDER: old(4),
    Kind.HALF: HALF,
    Kind.BROKEN: broken(1),
    Kind.CRASH_AFTER: LOST,
}
_FAULTS = {Kind.BEFORE: Fault.BEFORE, Kind.AFTER: Fault.AFTER, Kind.LATE: Fault.LATE, Kind.CRASH_AFTER: Fault.AFTER}


class Operation(NamedTuple):
    """One port operation: its number in the story, its process, method, and topic or file."""

    number: int
    process: str
    method: str
    target: str
    place: int = 0
    """The place of its call: equal for the same path through statelog's code. Of a story without a fault, else 0."""

    def __str__(self) -> str:
        return f"{self.number}-{self.process}-{self.method}-{self.target}".rstrip("-")

    def can(self, kind: Kind) -> bool:
        """Return whether this kind of fault makes a difference here."""
        return self.method in _KINDS[kind] if kind in _KINDS else self.method not in _POINT


class Nemesis:
    """A player of `faults`, by the number of the operation: the hook of queries and the faults of sends at once."""

    def __init__(self, faults: Mapping[int, Kind]) -> None:
        self.operations: list[Operation] = []
        self.played: list[str] = []
        self._faults = faults
        self._acting = ""
        self._dying: set[str] = set()
        self._fate = Fate.DELIVER
        self.is_quiet = False
        """If True the nemesis counts and plays nothing: for the judge's own queries."""

    # ---- the acting process

    @contextmanager
    def acting(self, process: str) -> Generator[None]:
        """Let this process act within the block. Raises Crash if it dies in it, however the block ends."""
        before, self._acting = self._acting, process
        try:
            yield
        except Exception as error:
            if process in self._dying:
                raise Crash from error
            raise
        finally:
            self._acting = before
        self._check_alive(process)

    def is_dying(self, process: str) -> bool:
        """Return whether it died."""
        return process in self._dying

    # ---- the hooks

    def __call__(self, call: Call) -> Answer:
        """Return the answer to a query to Kafka."""
        kind = self._ask(call.method, call.topic.removeprefix("story."))
        if call.method != "send":
            return TRUE if kind is None else _ANSWERS[kind]
        self._fate = {
            Kind.AFTER: Fate.APPEND_UNANSWERED,
            Kind.CRASH_AFTER: Fate.APPEND_UNANSWERED,
            Kind.FATAL: (Fate.FATAL, Fate.FATAL_APPENDED)[len(self.operations) % 2],
        }.get(kind or Kind.BEFORE, Fate.DELIVER)
        return UNAVAILABLE if kind is Kind.BEFORE else TRUE

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of the record of the last send."""
        return self._fate

    def store_hook(self, method: str, path: str) -> Fault | None:
        """Return the fault hook of every process' store."""
        kind = self._ask("read_file" if method == "read" else method, re.sub(r"[0-9a-f]{32}", "x", path))
        return None if kind is None else _FAULTS[kind]

    def disk_hook(self, step: str, _path: Path) -> None:
        """Fail every process' local disk: it is full."""
        if self._ask(f"disk_{step}", "") is Kind.BEFORE:
            raise OSError(errno.ENOSPC, "No space left on device")

    def point(self, step: str) -> None:
        """Pass a crash point of a process whose steps count as operations."""
        self._ask("point", step)

    # ---- inside

    def _ask(self, method: str, target: str) -> Kind | None:
        if self.is_quiet:
            return None
        self._check_alive(self._acting)
        place = 0 if self._faults else _place()
        operation = Operation(len(self.operations), self._acting, method, target, place)
        self.operations.append(operation)
        kind = self._faults.get(operation.number)
        if kind is None or not operation.can(kind):
            return None
        self.played.append(f"{operation} {kind.value}")
        if kind in {Kind.CRASH_BEFORE, Kind.CRASH_AFTER}:
            self._dying.add(self._acting)
        if kind is Kind.CRASH_BEFORE:
            raise Crash
        return kind

    def _check_alive(self, process: str) -> None:
        if process in self._dying and not self.is_quiet:
            raise Crash


def _place() -> int:
    """Return the lines of statelog's code on the stack, without the twins' lines."""
    frame, lines = inspect.currentframe(), list[tuple[str, int]]()
    while frame is not None:
        module = frame.f_globals["__name__"]
        if module.startswith("statelog.") and not module.startswith("statelog.testing."):
            lines.append((module, frame.f_lineno))
        frame = frame.f_back
    return hash(tuple(lines))
