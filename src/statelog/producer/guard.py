"""`Guard`: keeps a writer to one thread of one process, to one call at a time, and to one life: open, failed, closed.

    OPEN ──────► FAILED ──────► CLOSED
      └────────────────────────────▲

A failed writer accepts only close: something that it sent is lost or unknown, and only a new life, resumed from the
ledger, can find out what counts. A guard never waits, and owns no client.

Signal handlers and clients' callbacks run in the owner's thread, between any two steps of it. So each guarded call
takes a *turn*: until it ends, `user` is NOBODY, and any other call raises NestedCall. A handler can also end the call
that it interrupts, by raising. If that interrupts the step that ends the turn, the writer has failed.

Invariants:
- A life never goes back.
- Any exception out of a guarded block, Ctrl-C included, ends the writer: something may be half done.
- Of two calls one is over before the other begins, whenever a signal comes.
- An open writer whose user is NOBODY is in a call of its owner, or is being handed over.
- In a forked child the copy is unusable: its clients belong to the parent.
- It has at most one owner. A thread that hands it over is refused from then on; the thread that adopts it owns it.
- Calls of a failed writer raise ClosedError from the error that ended it, if that was a StatelogError.
- A guard that is dropped unclosed emits a ResourceWarning, as an open file does.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum
from functools import partial, wraps
from threading import get_ident
from typing import Concatenate, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from statelog.closing import Closing
from statelog.errors import ClosedError, Fenced, Misuse, NestedCall, StatelogError

P = ParamSpec("P")
R = TypeVar("R")
G = TypeVar("G", bound="Guarded")

NOBODY = -1
"""No thread: the user of a writer that has ended, is in a call, or belongs to another process."""
_living: "WeakSet[Guard]" = WeakSet()


class Life(Enum):
    """The state of a writer."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class Guard:
    """A writer's life, and its owner: the thread and process that made the guard.

    As a context manager it fails the writer if the block raises.

    what         the guarded object, as errors call it; they name its `log` and `writer`, too
    again, apart hints: after the end, and for a second thread or process
    """

    __slots__ = (
        "__weakref__", "_again", "_apart", "_facts", "_is_overtaken", "_pid", "_reason", "_thread", "_what", "life",
        "user",
    )  # fmt: skip

    def __init__(self, what: str, writer: str, *, log: str, again: str, apart: str) -> None:
        self.life = Life.OPEN
        self.user = self._thread = get_ident()
        """The thread that may go on without a check: the one comparison that a put makes. All others `check`.

        Code that takes a turn without `Guarded.turn` sets this to NOBODY in a `try`, restores it at the end, and calls
        `break_off` for every error.
        """
        self._pid = os.getpid()
        self._what = what
        self._facts = {"log": log, "writer": writer}
        self._again = again
        self._apart = apart
        self._is_overtaken = False
        self._reason: StatelogError | None = None
        _living.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a copy in a forked child."""
        return self._pid != os.getpid()

    @property
    def is_owned(self) -> bool:
        """Whether the caller is in the owner's thread and process."""
        return get_ident() == self._thread and not self.is_inherited

    def check(self) -> None:
        """Check life and owner. Raises ClosedError, Fenced, NestedCall."""
        self.check_life()
        self.check_owner()
        self.check_life()

    def check_life(self) -> None:
        """Raise ClosedError unless it is open, Fenced if another writer took over. For any thread, in any call."""
        if self._is_overtaken and self.life is Life.FAILED and not self.is_inherited:
            raise Fenced("another writer took over behind the last commit", **self._facts, hint=self._again)
        if self.life is not Life.OPEN and not self.is_inherited:
            what = f"the {self._what} {'has failed' if self.life is Life.FAILED else 'is closed'}"
            raise ClosedError(what, **self._facts, hint=self._again) from self._reason

    def check_owner(self) -> None:
        """Raise ClosedError unless the caller owns it, in any state, and NestedCall inside of another call."""
        self.check_thread()
        if self.user == NOBODY and self.life is Life.OPEN:
            raise NestedCall(f"the {self._what} is called inside of another call of it", **self._facts)

    def check_thread(self) -> None:
        """Raise ClosedError unless the caller is in the owner's thread and process, in any call."""
        if not self.is_owned:
            text = f"a {self._what} belongs to the thread and process that opened it"
            raise ClosedError(text, **self._facts, hint=self._apart)

    def end(self) -> bool:
        """Close it. Return whether to release its clients: only once, and never in a forked child."""
        if self.life is Life.CLOSED:
            return False
        self.become(Life.CLOSED)
        return not self.is_inherited

    def check_end(self) -> None:
        """Raise ClosedError in a second thread while the owner's is alive, and NestedCall inside of another call: both
        may be inside the clients. A closed writer may be closed again.
        """
        is_owned = self.life is not Life.CLOSED and not self.is_inherited
        if is_owned and self._thread in {thread.ident for thread in threading.enumerate()}:
            self.check_owner()

    def leave(self) -> None:
        """End the turn."""
        if self.life is Life.OPEN:
            self.user = self._thread

    def end_turn(self, error: BaseException) -> None:
        """End the turn by an error, which also ends the writer, unless it is a clear refusal."""
        if not is_refusal(error):
            self.fail()
        self.leave()

    def break_off(self) -> None:
        """Fail if an error left the turn open: a signal handler raised it in the step that ends the turn."""
        if self.user == NOBODY:
            self.fail()

    def become(self, life: Life) -> None:
        """End this life: failed, or closed."""
        assert self.life is not Life.CLOSED
        self.life = life
        self.user = NOBODY

    def fail(self) -> None:
        """Fail an open guard. One that was closed meanwhile, perhaps by a signal handler, stays closed.

        The error that is being handled becomes the reason.
        """
        if self.life is Life.OPEN:
            self.become(Life.FAILED)
            error = sys.exception()
            # A copy, because the error's own traceback keeps the writer and its callers' frames alive.
            self._reason = copy(error) if isinstance(error, StatelogError) else None

    def overtake(self) -> None:
        """Fail because another writer took over. Everything that was reported as committed counts."""
        self._is_overtaken = True
        self.fail()

    def hand_over(self, *parts: Callable[[], None]) -> Callable[[], None]:
        """Disown it, in a turn of the owner's. The thread that calls the returned function becomes the owner.

        That function then calls `parts`. It raises ClosedError, Fenced, NestedCall.
        """
        self._thread = NOBODY
        return partial(self._adopt, parts)

    def _adopt(self, parts: Sequence[Callable[[], None]]) -> None:
        if self._thread == NOBODY and not self.is_inherited:
            self._thread = get_ident()
            self.leave()
        self.check()
        for adopt in parts:
            adopt()

    def __str__(self) -> str:
        return f"{self._what} {self._facts['writer']} (log {self._facts['log']})"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self.life is not Life.CLOSED and not self.is_inherited:
            warn(f"unclosed {self} of statelog", ResourceWarning, source=self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.fail()


def is_refusal(error: BaseException) -> bool:
    """Return whether a call raised it before any change. A NestedCall is not: a handler interrupted the call by it."""
    return isinstance(error, Misuse) and not isinstance(error, NestedCall)


class Guarded(Closing):
    """A mixin: a context manager that closes itself, and fails if its block raises."""

    __slots__ = ()
    _guard: Guard

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: open another one")

    def _check_turn(self) -> None:
        """Raise NestedCall inside of a call that takes no turn."""

    @staticmethod
    def turn(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
        """Guard a method: one call at a time, while open. Calls raise ClosedError, Fenced, NestedCall."""
        return Guarded._alone(method, Guard.check, Guard.check_life)

    @staticmethod
    def last_turn(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
        """Guard a method that closes. Calls raise ClosedError, NestedCall."""
        return Guarded._alone(method, Guard.check_end, lambda _: None)

    @staticmethod
    def late_turn(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
        """Guard a method that also works after a failure. Calls raise ClosedError, NestedCall."""
        return Guarded._alone(method, Guard.check_owner, lambda _: None)

    @staticmethod
    def _alone(
        method: Callable[Concatenate[G, P], R], check: Callable[[Guard], None], check_again: Callable[[Guard], None]
    ) -> Callable[Concatenate[G, P], R]:
        @wraps(method)
        def alone(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
            guard = self._guard
            if get_ident() != guard.user:
                check(guard)
            self._check_turn()
            try:
                try:
                    guard.user = NOBODY  # A handler's call before this is over, and may have ended the writer.
                    if guard.life is not Life.OPEN:
                        check_again(guard)
                    return method(self, *args, **kwargs)
                except BaseException as error:
                    if not isinstance(error, Exception) or isinstance(error, NestedCall):
                        guard.fail()
                    raise
                finally:
                    guard.leave()
            except BaseException:
                guard.break_off()
                raise

        return alone

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._guard.fail()
        self.close()


def _disown_in_child() -> None:
    for guard in list(_living):
        guard.user = NOBODY


os.register_at_fork(after_in_child=_disown_in_child)
