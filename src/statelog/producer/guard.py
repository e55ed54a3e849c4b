"""`Guard`: keeps a writer to one thread of one process, and to one life: open, failed, closed.

    OPEN ──────► FAILED ──────► CLOSED
      └────────────────────────────▲

A failed writer accepts only close: something that it sent is lost or unknown, and only a new life, resumed from the
ledger, can find out what counts.

Never waits, and owns no client.

Invariants:
- A life never goes back.
- Any exception out of a guarded block, Ctrl-C included, ends the writer: something may be half done.
- In a forked child the copy is unusable: its clients belong to the parent.
- Who uses a writer that has failed is told why it failed, if that was an error of ours.
- A guard that is dropped unclosed emits a ResourceWarning, as an open file does.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable
from copy import copy
from enum import Enum
from threading import get_ident
from types import TracebackType
from weakref import WeakSet

from statelog.closing import Closing
from statelog.errors import ClosedError, Fenced, Misuse, StatelogError

__all__ = ["Guard", "Guarded", "Life"]

_NOBODY = -1
_living: "WeakSet[Guard]" = WeakSet()


class Life(Enum):
    """The state of a writer."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"

    def may_become(self, other: "Life") -> bool:
        """Whether this transition is legal; staying is."""
        return self is other or other in _STEPS[self]


_STEPS = {Life.OPEN: {Life.FAILED, Life.CLOSED}, Life.FAILED: {Life.CLOSED}, Life.CLOSED: set[Life]()}


class Guard:
    """A writer's life, and its owner: the thread and process that made the guard.

    As a context manager it fails the writer if the block raises. Errors name `what` it guards and which `writer`, and
    hint at what to do after the end (`again`) or in a second thread or process (`apart`).
    """

    __slots__ = (
        "__weakref__",
        "_again",
        "_apart",
        "_is_overtaken",
        "_pid",
        "_reason",
        "_thread",
        "_what",
        "_writer",
        "life",
        "user",
    )

    def __init__(self, what: str, writer: str, *, again: str, apart: str) -> None:
        self.life = Life.OPEN
        self.user = self._thread = get_ident()
        """The thread that may go on without a check: the one comparison that a hot put makes. All others `check`."""
        self._pid = os.getpid()
        self._what = what
        self._writer = writer
        self._again = again
        self._apart = apart
        self._is_overtaken = False
        self._reason: StatelogError | None = None
        _living.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a copy in a forked child."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raise ClosedError unless it is open and the caller owns it; Fenced if another writer took over meanwhile."""
        if self._is_overtaken and self.life is Life.FAILED and not self.is_inherited:
            raise Fenced("another writer took over behind the last commit", writer=self._writer, hint=self._again)
        if self.life is not Life.OPEN and not self.is_inherited:
            what = f"the {self._what} is {self.life.value}"
            raise ClosedError(what, writer=self._writer, hint=self._again) from self._reason
        self.check_owner()

    def check_owner(self) -> None:
        """Raise ClosedError unless the caller owns it, whatever its state."""
        if get_ident() != self._thread or self.is_inherited:
            raise ClosedError(
                f"a {self._what} belongs to the thread and process that opened it",
                writer=self._writer,
                hint=self._apart,
            )

    def end(self) -> bool:
        """Close it. Returns whether to release its clients: only once, and never in a forked child.

        Raises ClosedError in a second thread while the owner's is alive.
        """
        if self.life is Life.CLOSED:
            return False
        self.check_end()
        self.become(Life.CLOSED)
        return not self.is_inherited

    def check_end(self) -> None:
        """Raise ClosedError in a second thread while the owner's is alive: it may be inside the clients."""
        if self._thread in {thread.ident for thread in threading.enumerate()} and not self.is_inherited:
            self.check_owner()

    def become(self, life: Life) -> None:
        """Change the state."""
        assert self.life.may_become(life)
        self.life = life
        if life is not Life.OPEN:
            self.user = _NOBODY

    def fail(self) -> None:
        """Something is in doubt. A guard that was closed meanwhile, perhaps by a signal handler, stays closed.

        The error that is being handled is the reason.
        """
        if self.life is Life.OPEN:
            self.become(Life.FAILED)
            error = sys.exception()
            # A copy: the traceback of the error itself would keep the writer, and all that its callers hold, alive.
            self._reason = copy(error) if isinstance(error, StatelogError) else None

    def overtake(self) -> None:
        """Everything reported as committed counts; what comes next belongs to another writer."""
        self._is_overtaken = True
        self.fail()

    def fail_unless_refused(self, error: BaseException) -> None:
        """Anything but a clear refusal, such as Ctrl-C half way through, leaves the buffer in doubt."""
        if not isinstance(error, Misuse):
            self.fail()

    def disown(self) -> None:
        """Leave it without an owner."""
        self.user = _NOBODY

    def __str__(self) -> str:
        return f"{self._what} {self._writer}"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self.life is not Life.CLOSED and not self.is_inherited:
            warn(f"unclosed {self} of statelog", ResourceWarning, source=self)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.fail()


class Guarded(Closing):
    """A mixin: the context manager that closes itself, and has failed if its block raises."""

    __slots__ = ()
    _guard: Guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._guard.fail()
        self.close()


def _disown_in_child() -> None:
    for guard in list(_living):
        guard.disown()


os.register_at_fork(after_in_child=_disown_in_child)
