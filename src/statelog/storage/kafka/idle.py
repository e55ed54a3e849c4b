"""`IdleConsumers`: consumers between two reads, for readers that are many and seldom read: those of a worker's tables.

Invariants:
- A consumer is a reader's, while it reads, or waits here for the next one: at most one a topic, never read by two.
- Where a fork has copied it, it is given to nobody.
"""

from collections import deque
from contextlib import suppress
from typing import NamedTuple

import confluent_kafka

from statelog.storage.kafka.native import native
from statelog.storage.kafka.process import ProcessGuard

__all__ = ["IdleConsumer", "IdleConsumers"]


class IdleConsumer(NamedTuple):
    """A consumer that fetches nothing, and what it has told of errors."""

    client: confluent_kafka.Consumer
    errors: deque[confluent_kafka.KafkaError]


class IdleConsumers:
    """Those of one cluster. Threads may share it."""

    def __init__(self) -> None:
        self._idle: dict[str, tuple[IdleConsumer, ProcessGuard]] = {}
        self._is_closed = False

    def take(self, topic: str) -> IdleConsumer | None:
        """One that has read this topic, for the caller to give back or to close; None if there is none."""
        found = self._idle.pop(topic, None)
        if found is None or found[1].is_foreign:
            return None
        found[1].close()
        return found[0]

    def give(self, topic: str, idle: IdleConsumer) -> None:
        """Keep it for the next, or close it."""
        guard = ProcessGuard("reader")
        guard.hold(idle.client)
        if self._idle.setdefault(topic, (idle, guard))[0] is not idle:
            _close(idle, guard)
        if self._is_closed:  # By another thread, which may have looked before.
            self.close()

    def close(self) -> None:
        """Release them. Idempotent."""
        self._is_closed = True
        for topic in list(self._idle):
            idle, guard = self._idle.pop(topic, (None, None))
            if idle is not None and guard is not None and not guard.is_foreign:
                _close(idle, guard)


def _close(idle: IdleConsumer, guard: ProcessGuard) -> None:
    guard.close()
    with suppress(confluent_kafka.KafkaException):
        native(idle.client.close)
