"""Who answers is asked seldom, by one thread for all, and beside what does not need the answer yet."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from statelog.environment import inline
from statelog.errors import BrokerUnavailable, IdentityChanged
from statelog.storage.log.evidence import Looks
from statelog.storage.log.topics import IdentifiedTopics
from tests.support.waiting import wait_for


class _Cluster:
    """Counts what it is asked, and answers by the number; `pause` holds an answer back."""

    def __init__(self) -> None:
        self.asked = 0
        self.now_s = 0.0
        self.pause: Callable[[], object] = lambda: None

    def identify(self) -> IdentifiedTopics:
        self.asked += 1
        number = self.asked
        self.pause()
        return cast("IdentifiedTopics", number)

    def looks(self) -> Looks:
        return Looks(self.identify, lambda: self.now_s)


def _number(looks: Looks, max_age_s: float | None) -> Any:
    return looks.verified(max_age_s).topics


def test_an_answer_serves_until_it_is_too_old() -> None:
    """By the time of its question; and "anew" is asked whatever is there."""
    cluster = _Cluster()
    looks = cluster.looks()
    found: list[object] = []
    for now_s, max_age_s in ((0.0, 1.0), (0.9, 1.0), (1.0, 1.0), (1.1, None), (1.2, 0.0)):
        cluster.now_s = now_s
        found.append(_number(looks, max_age_s))
    assert found == [1, 1, 2, 3, 4]


def test_one_thread_asks_for_all() -> None:
    """Those that come meanwhile wait for its answer."""
    cluster, answer = _Cluster(), threading.Event()
    cluster.pause = lambda: answer.wait(60)
    looks = cluster.looks()
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(_number, looks, 10.0) for _ in range(8)]
        wait_for(lambda: cluster.asked > 0, "nobody asked")
        answer.set()
    assert [one.result() for one in results] == [1] * 8


@pytest.mark.parametrize(("age_s", "asked"), [(0.4, 1), (0.5, 2)])
def test_it_is_asked_ahead_once_an_answer_is_half_as_old_as_it_may_be(age_s: float, asked: int) -> None:
    """Whoever needs an answer meanwhile waits for that one; a second thread is not begun."""
    cluster = _Cluster()
    looks, begun = cluster.looks(), list[Callable[[], None]]()
    looks.verified(1.0)
    cluster.now_s = age_s
    for _ in range(2):
        looks.ahead(1.0, begun.append)
    assert len(begun) == asked - 1
    for work in begun:
        work()
    cluster.now_s = 1.2
    assert _number(looks, 1.0) == 2
    assert cluster.asked == 2


def test_anew_is_asked_after_the_call_for_it() -> None:
    """An answer that others have asked for before says nothing of what changed since, however late it comes."""
    cluster, answer = _Cluster(), threading.Event()
    looks = cluster.looks()
    cluster.pause = lambda: answer.wait(60)
    with ThreadPoolExecutor(2) as threads:
        looks.ahead(1.0, lambda work: (threads.submit(work), None)[1])
        wait_for(lambda: cluster.asked > 0, "nobody asked")
        anew = threads.submit(_number, looks, None)
        answer.set()
    assert anew.result() == 2


def test_what_fails_ahead_is_asked_again_by_who_needs_it() -> None:
    """An error beside the work is nobody's; nor is it when no thread can be had."""
    cluster = _Cluster()
    looks = cluster.looks()

    def fail() -> None:
        raise BrokerUnavailable("it is away", hint="Wait")

    def no_room(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    looks.ahead(1.0, no_room)
    cluster.pause = fail
    looks.ahead(1.0, inline)
    assert cluster.asked == 1
    with pytest.raises(BrokerUnavailable):
        looks.verified(1.0)
    cluster.pause = lambda: None
    assert _number(looks, 1.0) == 3


def test_what_is_learned_ahead_is_not_forgotten() -> None:
    """That the log is another one by now is told to who needs an answer, young as the one before may be."""
    cluster = _Cluster()
    looks = cluster.looks()
    looks.verified(1.0)

    def is_another() -> None:
        raise IdentityChanged("it was made anew")

    cluster.now_s, cluster.pause = 0.6, is_another
    looks.ahead(1.0, inline)
    with pytest.raises(IdentityChanged):
        looks.verified(1.0)
