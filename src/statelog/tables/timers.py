"""`Timed`: the methods of a table that are about rows with a due. `Expiry` has the rules.

    table.put(key, value, due=when)     hidden from then on, and deleted by the next commit
    table.run_due(f)                    `f` is called instead of the delete: a timer

Invariants:
- What a timer's function does, and the end of its row's due, are in one commit, or neither is.
- One call runs each row once at most, whatever its function does.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from threading import get_ident
from typing import Any, Self

from statelog.errors import Misuse
from statelog.log.options import K, V
from statelog.producer.guard import NOBODY, Guarded
from statelog.schemas.changes.due import When
from statelog.tables.expiry import Expiry
from statelog.tables.keyed import Keyed
from statelog.tables.layers import Layers
from statelog.tables.scheduler import CommitScheduler
from statelog.tables.state.dues import DueKey


class Timed(Guarded, Keyed[K, V]):
    """A mapping whose rows may expire. Belongs to one thread."""

    _layers: Layers
    _expiry: Expiry
    _commits: CommitScheduler
    _count: int
    _is_lent: bool
    _timed: bool
    _every: bool

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Self]:
        """Undo the changes of the block if it raises."""

    @abstractmethod
    def _refresh(self) -> None:
        """Take note of new layers, and of the first due."""

    def _note(self, key: Any, value: Any, due: When | None = None) -> None:
        """Add a change to the layer with its due, and to the ordered history, in a turn.

        Not by `Guarded.turn`, which would take a third of a put.
        """
        guard, user = self._guard, get_ident()
        if user != guard.user:
            guard.check()
        try:
            try:
                guard.user = NOBODY
                due_ms = None if value is None else self._expiry.admit(due)
                if self._expiry.is_timed is not self._timed:
                    self._refresh()
                self._count += 1
                self._layers.active.put(key, value, due_ms)
                self._expiry.noted(key, due_ms)
                if self._every:
                    self._layers.active.history.append((key, value, due_ms))
            finally:
                guard.user = user
        except BaseException as error:
            if not isinstance(error, Exception):
                guard.fail()
            guard.break_off()
            raise

    def due(self, key: K) -> datetime | None:
        """Return when a row expires, in UTC; None if it has no due, or if there is no such row.

        Raises the errors of `get`.
        """
        return self._expiry.due(self._keys.admit(key)) if key in self else None

    def run_due(self, f: Callable[[Self, K, V], object], most: int = 10_000) -> int:
        """Call `f(table, key, value)` for up to `most` rows that are due, oldest first, and return how many.

            table.run_due(lambda table, key, value: table.delete(key))

        Before each call the due of its row ends, so that it is there again. What `f` does is in the same commit: it may
        delete the row, put it again with another due, and change others. If `f` raises, both are undone, and the row is
        due as before. A progress that was named last, by any commit call, covers it. From the first call on, commits of
        this object delete no rows that are due.

        Raises Misuse, the errors of `f`, and those of `transaction`.
        """
        if not callable(f):
            raise Misuse(f"a timer of type {type(f).__name__} cannot be called", hint="Give f(table, key, value)")
        if type(most) is not int or most < 1:
            raise Misuse(f"most is {most!r:.100}, not a positive number of rows", hint="Call run_due(f, most=1000)")
        calls, count = 0, self._count
        try:
            for key, due_ms in self._timers(most):
                with self.transaction():
                    held = self._expiry.held(key, due_ms)
                    if held is not None:
                        self._note(key, held)
                        f(self, key, self._expiry.values.copy(held))
                        calls += 1
        finally:
            if not self._is_lent:  # A worker names each progress itself.
                self._commits.carried_on(count, self._count)
        return calls

    @Guarded.turn
    def _timers(self, most: int) -> list[DueKey]:
        return self._expiry.timers(most)

    @property
    def has_overdue(self) -> bool:
        """Whether there are rows that the next commit deletes because they are due."""
        return self._expiry.has_overdue

    @property
    def overdue_s(self) -> float:
        """Seconds since the oldest committed row is due that is still there; 0.0 if none is. On any thread."""
        return self._expiry.overdue_s
