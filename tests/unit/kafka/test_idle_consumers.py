"""Idle consumers are retained between two reads."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

import pytest

from statelog.kafka import reader
from statelog.kafka.reader import IdleConsumer, IdleConsumers


@dataclass
class _Client:
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


def _idle(client: Any) -> IdleConsumer:
    return IdleConsumer(client, deque())


def test_one_that_waited_for_long_is_closed() -> None:
    """A consumer that idled for long is closed: a network may have dropped its connection, and a read would hang."""
    now_s, client = [0.0], _Client()
    waiting = IdleConsumers(lambda: now_s[0])
    waiting.give("t", _idle(client))
    now_s[0] = 59.0
    taken = waiting.take("t")
    assert taken is not None
    assert client.closed == 0
    waiting.give("t", taken)
    now_s[0] = 119.0
    assert waiting.take("t") is None
    assert client.closed == 1
    waiting.close()
    assert client.closed == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_as_many_wait_for_a_topic_as_have_read_it(is_late: bool) -> None:
    """Each topic retains as many idle consumers as read it, and reuses the last one first.

    Closing the pool closes the idle ones, and each that comes back later.
    """
    first, second = _Client(), _Client()
    waiting = IdleConsumers(lambda: 0.0)
    if is_late:
        waiting.close()
    waiting.give("t", _idle(first))
    waiting.give("t", _idle(second))
    assert (first.closed, second.closed) == (int(is_late), int(is_late))
    taken = [waiting.take("t"), waiting.take("t")]
    assert taken == ([None, None] if is_late else [_idle(second), _idle(first)])
    assert waiting.take("t") is None
    for one in filter(None, taken):
        waiting.give("t", one)
    waiting.close()
    assert (first.closed, second.closed) == (1, 1)
    assert waiting.take("t") is None


def test_a_sparing_one_is_for_single_records() -> None:
    """A sparing consumer serves only reads of single records. Such reads take whichever consumer was used last."""
    sparing, other = IdleConsumer(cast("Any", _Client()), deque(), True), _idle(_Client())
    waiting = IdleConsumers(lambda: 0.0)
    waiting.give("t", sparing)
    assert waiting.take("t") is None
    waiting.give("t", other)
    assert waiting.take("t", is_single=True) is other
    assert waiting.take("t", is_single=True) is sparing
    waiting.give("t", other)
    waiting.give("t", sparing)
    assert waiting.take("t") is other
    waiting.close()


def test_of_many_topics_the_oldest_are_closed() -> None:
    """Few consumers idle, however many topics a process reads. The ones that were used least recently are closed."""
    waiting = IdleConsumers(lambda: 0.0)
    consumers = [_Client() for _ in range(36)]
    for number, consumer in enumerate(consumers):
        waiting.give(f"topic{number}", _idle(consumer))
    assert [one.closed for one in consumers] == [1] * 4 + [0] * 32
    assert waiting.take("topic3") is None
    assert waiting.take("topic4") is not None
    waiting.close()


def test_one_that_nobody_comes_for_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle consumer is closed after a while, so that its threads and connections do not stay for months."""
    monkeypatch.setattr(reader, "_FRESH_S", 0.1)
    client, waiting = _Client(), IdleConsumers(time.monotonic)
    for _ in range(2):
        closed = client.closed
        waiting.give("t", _idle(client))
        until_s = time.monotonic() + 60
        while client.closed == closed and time.monotonic() < until_s:
            time.sleep(0.02)
        assert client.closed == closed + 1
        assert waiting.take("t") is None
    waiting.close()
