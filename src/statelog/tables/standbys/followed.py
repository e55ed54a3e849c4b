"""`FollowedState`: the state of a standby. One thread moves it on while any thread reads it.

Invariants:
- A signal's handler that interrupts a move reads nothing. One that interrupts a read moves and closes nothing.
- Once following has failed, every read raises its error. Once the state is closed, every read is refused.
- A read waits for Kafka only if it wants a younger state, and not for long: the thread that follows checks the ledger.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, RLock, get_ident
from typing import Any

from statelog.errors import ClosedError, Misuse, NestedCall, StatelogError, TooOld
from statelog.producer.guard import Life
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind
from statelog.tables.state.state import State
from statelog.tables.state.store import StatePlace
from statelog.tables.state_opener import OpenReport

_POLITE_S = 0.1
"""How long a scan lets a move go first, so that scan after scan does not starve it. Limited, because the move may wait
for this thread.
"""
_ANSWER_S = 0.5
"""How long a reader that wants a younger state waits for the thread that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A state at a place, with the owner's last commit, and when it was last known to be level with the ledger."""

    state: State
    place: StatePlace
    last_commit: LastCommit | None
    level_s: float
    opening: OpenReport


@dataclass(slots=True, eq=False)
class _RunningScan:
    """A running scan and the thread that began it. `is_over`: whether it was aborted."""

    thread: int
    is_over: bool = False


class FollowedState:
    """A state that one thread moves on with `moving`, and any thread reads with `reading` and `scan`."""

    def __init__(self, view: StateView, clock: Callable[[], float]) -> None:
        self.view = view
        self.life = Life.OPEN
        self._clock = clock
        self._lock = RLock()  # Reentrant: a scan may be dropped, and so end, wherever memory is freed.
        self._is_free = Condition(self._lock)
        self._scans: set[_RunningScan] = set()
        self._is_moving = self._is_read = False  # With the lock held, True means that this thread does it.
        self._is_awaited = False
        self._is_barred = False
        self.is_called = False
        """Whether a reader wants the state's age, so that the ledger's end is checked."""
        self.is_answered = False
        """Whether a thread follows, and Kafka answered its last step."""
        self._error: BaseException | None = None
        self._end = "closed"

    # ---- reads, on any thread

    @property
    def age_s(self) -> float:
        """Seconds since the state was last known to be level with the ledger's end. Triggers another check."""
        self.is_called = True
        return self._age_s

    @property
    def _age_s(self) -> float:
        return max(0.0, self._clock() - self.view.level_s)

    @contextmanager
    def reading(self, max_age_s: float | None = None) -> Generator[StateView]:
        """Give the state, which does not move inside the block.

        Raises ClosedError, TooOld, and the error that following has failed with: Damaged, Fenced, Unavailable.
        """
        if max_age_s is not None:
            check_kind("max_age_s", max_age_s, int, float, example="max_age_s=1.0")
        with self._lock:
            self.check()
            if max_age_s is not None and not self._is_young(max_age_s):
                raise TooOld(
                    "the standby's state is older than max_age_s",
                    age_s=round(self._age_s, 3),
                    max_age_s=max_age_s,
                    position=self.view.place.position,
                )
            was = self._is_read
            try:
                self._is_read = True
                yield self.view
            finally:
                self._is_read = was

    def _is_young(self, max_age_s: float) -> bool:
        """Return whether the state is young enough for a reader, if need be after another check of the ledger."""
        self.is_called |= not self._age_s <= max_age_s / 2
        if self._age_s > max_age_s and self.is_answered and not (self._is_read or self._is_moving):
            now_s = self._clock()
            self.is_answered = self._is_free.wait_for(
                lambda: self._age_s <= max_age_s or self.view.level_s >= now_s or self.life is not Life.OPEN, _ANSWER_S
            )
            self.check()
        return self._age_s <= max_age_s  # No state is as young as NaN.

    def scan(
        self, items: Callable[[State], Iterator[tuple[Any, Any]]], *, keys_only: bool = False
    ) -> Generator[tuple[Any, Any]]:
        """Yield copies of the items of one position. The state stays at it until the end of the scan."""
        scan = _RunningScan(get_ident())
        try:
            with self._is_free:
                self._is_free.wait_for(lambda: not self._is_awaited, _POLITE_S)
                scan.is_over = self._is_barred
                self.check(scan)
                self._scans.add(scan)
                found, copy = items(self.view.state), self.view.state.values.copier(keys_only=keys_only)
            while True:
                with self._lock:
                    self.check(scan)
                    was = self._is_read
                    try:
                        self._is_read = True
                        item = next(found, None)
                    finally:
                        self._is_read = was
                if item is None:
                    return
                yield item[0], copy(item[1])
        finally:
            with self._lock:
                self._scans.discard(scan)
                self._is_free.notify_all()

    def check_alone(self) -> None:
        """Raise NestedCall inside of a read or a move of this thread."""
        with self._lock:
            if self._is_read or self._is_moving:
                raise NestedCall("the standby is called inside of another call of it")

    def check_movable(self) -> None:
        """Raise the errors of `check`, and Misuse on a thread with a running scan: the move would wait for it."""
        with self._lock:
            self.check()
            if any(scan.thread == get_ident() for scan in self._scans):
                hint = "Take a list first: `for key in list(standby)`"
                raise Misuse("a standby cannot be refreshed while this thread iterates it", hint=hint)

    def check(self, scan: _RunningScan | None = None) -> None:
        """Raise the error that following has failed with, if any: Damaged, Fenced, Unavailable.

        Raise ClosedError after the end of the state or of the scan, NestedCall inside of a move.
        """
        with self._lock:
            if self._is_moving:
                raise NestedCall("a signal's handler reads the standby while this thread moves it on")
            life, error = self.life, self._error
        if life is Life.OPEN:
            if scan is not None and scan.is_over:
                raise ClosedError("the standby was promoted, or was about to be, while it was iterated")
            return
        if life is Life.CLOSED:
            raise ClosedError(f"the standby is {self._end}", hint="Read the table, or open a standby again")
        hint = "Close the standby, and open it again, which brings its directory up to date"
        if isinstance(error, StatelogError):
            raise error.restated(hint=error.hint or hint) from error
        raise ClosedError(f"the standby has failed: {error!r}", hint=hint) from error

    # ---- moves, by one thread at a time

    def level(self, view: StateView) -> None:
        """Replace the view by one of the same state, level with a later end of the ledger."""
        with self._is_free:
            self.view = view
            self._is_free.notify_all()

    @contextmanager
    def moving(self) -> Generator[None]:
        """Keep reads out of the block, in which state and view may change. Waits for scans to end.

        An error inside fails the state before any read sees half of a move.
        """
        with self._is_free:
            self._is_awaited = True
            self._is_free.wait_for(lambda: not self._scans)
            try:
                self._is_moving = True
                yield
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._is_moving = self._is_awaited = False
                self._is_free.notify_all()

    @contextmanager
    def without_scans(self) -> Generator[None]:
        """Abort scans, and keep new ones out of the block, so that a promotion never waits for a reader's loop."""
        try:
            self._is_barred = True
            self.break_scans()
            yield
        finally:
            self._is_barred = False

    def break_scans(self) -> None:
        """Abort running scans, without waiting for them."""
        with self._lock:
            for scan in self._scans:
                scan.is_over = True
            self._scans.clear()
            self._is_free.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise this error in every read from now on: the state cannot be moved on."""
        with self._lock:
            if self.life is Life.OPEN:
                self.life, self._error = Life.FAILED, error

    def close(self, end: str = "closed") -> None:
        """Refuse every read from now on; `end` says why. Idempotent."""
        with self._lock:
            if self.life is not Life.CLOSED:
                self.life, self._end = Life.CLOSED, end
            self.break_scans()
