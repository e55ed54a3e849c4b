"""The life of a writer, and who may use it: one thread of one process, as long as nothing is in doubt.

    OPEN ──────► FAILED ──────► CLOSED
      └────────────────────────────▲

A failed writer accepts nothing but close: something that it sent is lost or unknown, and only a new life,
resumed from the ledger, can tell what counts.

Never waits, and owns no client.

Invariants:
- No life comes back.
- Whatever leaves a guarded block as an exception, Ctrl-C included, ends the writer: something may be half done.
- After a fork the child's copy is nobody's: its clients live on in the parent.
- One that is forgotten open says so by a ResourceWarning when it goes, as an open file does.
"""

import os
import threading
import warnings
from collections.abc import Callable
from enum import Enum
from threading import get_ident
from types import TracebackType
from weakref import WeakSet

from statelog.errors import ClosedError, Fenced, Misuse

__all__ = ["Guard", "Life"]

_NOBODY = -1
_living: "WeakSet[Guard]" = WeakSet()


class Life(Enum):
    """Where a writer is."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"

    def may_become(self, other: "Life") -> bool:
        """Whether the step is legal; staying is."""
        return self is other or other in _STEPS[self]


_STEPS = {Life.OPEN: {Life.FAILED, Life.CLOSED}, Life.FAILED: {Life.CLOSED}, Life.CLOSED: set[Life]()}


class Guard:
    """A writer's life, and the thread and process that it belongs to: those that made this.

    As a context it ends the writer if the block does not end well. For errors: `what` it guards and of which `writer`,
    what to do when it is over (`again`), and for a second thread or process (`apart`).
    """

    __slots__ = (
        "__weakref__",
        "_again",
        "_apart",
        "_is_overtaken",
        "_pid",
        "_thread",
        "_what",
        "_writer",
        "life",
        "user",
    )

    def __init__(self, what: str, writer: str, *, again: str, apart: str) -> None:
        self.life = Life.OPEN
        self.user = self._thread = get_ident()
        """The thread that may go on without asking: the one compare that a hot put makes. All others `check`."""
        self._pid = os.getpid()
        self._what = what
        self._writer = writer
        self._again = again
        self._apart = apart
        self._is_overtaken = False
        _living.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a fork's copy."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raise ClosedError unless it is open and its owner asks; Fenced if another writer took over meanwhile."""
        if self._is_overtaken and self.life is Life.FAILED and not self.is_inherited:
            raise Fenced("another writer took over behind the last commit", writer=self._writer, hint=self._again)
        if self.life is not Life.OPEN and not self.is_inherited:
            raise ClosedError(f"the {self._what} is {self.life.value}", writer=self._writer, hint=self._again)
        self.check_owner()

    def check_owner(self) -> None:
        """Raise ClosedError unless its owner asks, whatever its life is."""
        if get_ident() != self._thread or self.is_inherited:
            raise ClosedError(
                f"a {self._what} belongs to the thread and process that opened it",
                writer=self._writer,
                hint=self._apart,
            )

    def end(self) -> bool:
        """Close it. Whether its clients are to be released: not twice, and not in a fork, whose parent has them.

        Raises ClosedError in a thread beside the living owner's.
        """
        if self.life is Life.CLOSED:
            return False
        self.check_end()
        self.become(Life.CLOSED)
        return not self.is_inherited

    def check_end(self) -> None:
        """Raise ClosedError in a thread beside the living owner, who may be inside the clients that would go."""
        if self._thread in {thread.ident for thread in threading.enumerate()} and not self.is_inherited:
            self.check_owner()

    def become(self, life: Life) -> None:
        """Go on to another life."""
        assert self.life.may_become(life)
        self.life = life
        if life is not Life.OPEN:
            self.user = _NOBODY

    def fail(self) -> None:
        """Something is in doubt. One that was closed meanwhile, perhaps by a signal's handler, stays closed."""
        if self.life is Life.OPEN:
            self.become(Life.FAILED)

    def overtake(self) -> None:
        """All that was told committed counts, and another writer owns what comes next."""
        self._is_overtaken = True
        self.fail()

    def fail_unless_refused(self, error: BaseException) -> None:
        """What is not a clear refusal of one change, such as Ctrl-C half way, leaves the buffer in doubt."""
        if not isinstance(error, Misuse):
            self.fail()

    def disown(self) -> None:
        """Make it nobody's."""
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


def _disown_in_child() -> None:
    for guard in list(_living):
        guard.disown()


os.register_at_fork(after_in_child=_disown_in_child)
