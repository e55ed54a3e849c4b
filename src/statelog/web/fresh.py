"""`Fresh`: a value that is made anew, behind the page, when it is asked for and too old.

Owns when it is made. Invariants: it is made by one thread at a time, and only while somebody asks; who asks waits for a
bounded time, and gets the last value with its age, also while a new one hangs; what went wrong is kept beside it.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from statelog.errors import StatelogError

_LOG = logging.getLogger("statelog.web")
_MOST_FAILURES = 10
_SHARE = 4.0
"""A value that takes a second to make is made once in so many seconds at most: looking is not what a machine is for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, for people: its kind, what it says, what to do; so many `times` in a row, the last at `at_s`."""

    kind: str
    message: str
    hint: str
    at_s: float
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(Generic[T]):
    """The last value, None before the first, and the time when it was asked for; whether a later one failed, and what
    failed lately, the newest first. `waiting_s`: for how long a new one has been under way; 0 if none is.
    """

    value: T | None = None
    at_s: float = 0.0
    is_failing: bool = False
    failures: tuple[Failure, ...] = ()
    waiting_s: float = 0.0


class Fresh(Generic[T]):
    """Thread-safe. `clock`: seconds since 1970. What `make` raises is kept as a failure."""

    def __init__(self, make: Callable[[], T], executor: Executor, *, clock: Callable[[], float]) -> None:
        self._make = make
        self._executor = executor
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Seen[T] = Seen()
        self._under_way: Future[None] | None = None
        self._began_s = 0.0
        self._ended_s: float | None = None

    def get(self, *, wait_s: float, most_age_s: float) -> Seen[T]:
        """The value, made anew if it is older than `most_age_s`; the last one if that takes longer than `wait_s`."""
        with self._lock:
            if self._under_way is None and self._is_due(most_age_s):
                self._began_s = self._clock()
                self._under_way = self._executor.submit(self._run)
            under_way = self._under_way
        if under_way is not None:
            wait([under_way], wait_s)
        with self._lock:
            waiting_s = self._clock() - self._began_s if self._under_way else 0.0
            return replace(self._seen, waiting_s=waiting_s)

    def _is_due(self, most_age_s: float) -> bool:
        if self._ended_s is None:
            return True
        took_s = self._ended_s - self._began_s
        return self._clock() >= self._ended_s + max(most_age_s, _SHARE * took_s)

    def _run(self) -> None:
        began_s = self._clock()
        seen = self._seen
        try:
            seen = Seen(value=self._make(), at_s=began_s, failures=seen.failures)
        except StatelogError as error:
            seen = _failed(seen, _failure(error, began_s))
        except Exception as error:  # noqa: BLE001 - a defect is told on the page, and logged with its trace
            _LOG.exception("a look failed for a reason that is no error of ours")
            seen = _failed(seen, Failure(kind=type(error).__name__, message=str(error), hint="", at_s=began_s))
        finally:
            with self._lock:
                self._seen, self._under_way = seen, None
                self._ended_s = self._clock()


def _failure(error: StatelogError, at_s: float) -> Failure:
    facts = "; ".join(f"{name}: {value}" for name, value in error.facts.items())
    message = f"{error.message} ({facts})" if facts else error.message
    return Failure(kind=type(error).__name__, message=message, hint=error.hint or "", at_s=at_s)


def _failed(seen: Seen[T], failure: Failure) -> Seen[T]:
    """With one failure more; one that is the same as the last counts it."""
    earlier = seen.failures
    if earlier and (earlier[0].kind, earlier[0].message) == (failure.kind, failure.message):
        failure, earlier = replace(failure, times=earlier[0].times + 1), earlier[1:]
    return replace(seen, is_failing=True, failures=(failure, *earlier)[:_MOST_FAILURES])
