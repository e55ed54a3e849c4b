"""A value that is made in the background of the page: its maker, its age, and its failures."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from statelog.environment import Environment
from statelog.errors import BrokerUnavailable
from statelog.testing import StillClock
from statelog.web.views import Fresh

_SOON_S = 5.0
_AGE_S = 1.0
T = TypeVar("T")


def fresh_value(make: Callable[[], T], executor: ThreadPoolExecutor, clock: StillClock) -> Fresh[T]:
    """Return a value that knows only this clock."""
    return Environment(clock=clock, wall_clock=clock).run(Fresh, make, executor)


@pytest.fixture
def executor() -> Generator[ThreadPoolExecutor]:
    """Return an executor of two threads."""
    with ThreadPoolExecutor(2) as made:
        yield made


def test_a_value_is_made_when_it_is_asked_for_and_too_old(executor: ThreadPoolExecutor) -> None:
    """A value is made on request, and not again before it is too old."""
    clock, made = StillClock(), iter(range(10))
    fresh = fresh_value(lambda: next(made), executor, clock)
    assert [fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).value for _ in range(3)] == [0, 0, 0]
    clock.advance(2.0)
    assert fresh.get(wait_s=_SOON_S, most_age_s=3.0).value == 0, "the value is recent enough for this page"
    seen = fresh.get(wait_s=_SOON_S, most_age_s=2.0)
    assert (seen.value, seen.at_s, seen.is_failing, seen.failures) == (1, clock(), False, ())


def test_what_takes_long_is_made_less_often(executor: ThreadPoolExecutor) -> None:
    """A check that takes a minute is not repeated at once: a page costs a fifth of a core at most."""
    clock, made = StillClock(), iter(range(10))

    def slow() -> int:
        clock.advance(60.0)
        return next(made)

    fresh = fresh_value(slow, executor, clock)
    assert fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).value == 0
    clock.advance(239.0)
    assert fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).value == 0
    clock.advance(1.0)
    assert fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).value == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_anew_delays_nothing(executor: ThreadPoolExecutor, hours: int) -> None:
    """A clock that is set back or forward, between checks or during one, does not delay the page."""
    clock, wall_clock, made = StillClock(), StillClock(1e9), iter(range(10))

    def make() -> int:
        wall_clock.advance(hours * 3600.0)
        return next(made)

    fresh = Environment(clock=clock, wall_clock=wall_clock).run(Fresh, make, executor)
    for number in range(3):
        seen = fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S)
        assert (seen.value, seen.waiting_s, seen.at_s) == (number, 0.0, 1e9 + hours * 3600.0 * number)
        clock.advance(_AGE_S)


def test_the_last_value_is_shown_beside_what_failed_since(executor: ThreadPoolExecutor) -> None:
    """The last value is shown next to later failures. Equal ones are counted, and a past one stays on the list."""
    clock = StillClock()
    errors: list[Exception] = []

    def make() -> str:
        if errors:
            raise errors[0]
        return "state"

    fresh = fresh_value(make, executor, clock)
    good_s = clock()
    assert fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).value == "state"
    errors.append(BrokerUnavailable("no answer", topic="visits", hint="Start it"))
    for _ in range(2):
        clock.advance(1.0)
        assert fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S).is_failing
    clock.advance(1.0)
    seen = fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S)
    assert (seen.value, seen.at_s, seen.is_failing) == ("state", good_s, True)
    (failure,) = seen.failures
    assert (failure.kind, failure.times, failure.hint) == ("BrokerUnavailable", 3, "Start it")
    assert "topic=visits" in failure.message
    errors.clear()
    clock.advance(1.0)
    seen = fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S)
    assert (seen.is_failing, seen.failures) == (False, (failure,))


def test_a_defect_is_told_and_logged(executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    """A defect is shown and logged, and does not end the page."""

    def make() -> int:
        raise ZeroDivisionError("a defect")

    seen = fresh_value(make, executor, StillClock()).get(wait_s=_SOON_S, most_age_s=_AGE_S)
    assert [(one.kind, one.message) for one in seen.failures] == [("ZeroDivisionError", "a defect")]
    assert "ZeroDivisionError" in caplog.text


def test_one_that_hangs_is_waited_for_once(executor: ThreadPoolExecutor) -> None:
    """A hanging value occupies one thread, however many ask. Each gets the last value after its time."""
    clock, gate, begun = StillClock(), threading.Event(), iter(range(10))

    def make() -> int:
        number = next(begun)
        assert gate.wait(30)
        return number

    fresh = fresh_value(make, executor, clock)
    assert fresh.get(wait_s=0.0, most_age_s=_AGE_S).value is None
    clock.advance(100.0)
    for _ in range(5):
        assert fresh.get(wait_s=0.0, most_age_s=_AGE_S).waiting_s == 100.0
    gate.set()
    seen = fresh.get(wait_s=_SOON_S, most_age_s=_AGE_S)
    assert (seen.value, seen.waiting_s) == (0, 0.0)
    assert next(begun) == 1
