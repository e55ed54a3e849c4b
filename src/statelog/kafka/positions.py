"""High-water marks: the highest ends of a cluster's logs that this process has observed.

A listed end is a hint. A leader that was deposed while it was paused answers with its own end, until it learns of its
successor. A broken connection yields no offset. So within a process an end never goes back, unless the log surely did.
This module owns the observed ends, and the decision which answer to trust. It does no I/O: requests, and the waits
between them, are parameters.

An end below an observed one is trusted only if
- the leader that answers is newer than the one of the observed end, and a second answer is the same; or
- the topic is another one of the same name (then all its observed ends are dropped); or
- no request has found another one in all of the time.

Log starts may go back: a crashed broker may have forgotten its last truncation.
"""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from statelog.errors import BrokerUnavailable, Unavailable
from statelog.kafka.port import OffsetRange, TopicDescription

UNKNOWN_EPOCH = -1


class Listed(NamedTuple):
    """A broker's raw answer for one partition: a negative offset is no answer."""

    start: int
    end: int
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def is_answer(self) -> bool:
        """Whether it has both offsets, and they can be those of one log."""
        return 0 <= self.start <= self.end


class HighWater:
    """The highest observed end of each partition, with its leader's epoch. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[int, Listed]] = {}
        self._ids: dict[str, str] = {}

    def unlock(self) -> None:
        """Replace the lock in a forked child, where the thread that may hold it does not exist."""
        self._lock = threading.Lock()

    def reached(self, topic: str, partition: int, end: int, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Note that a record below `end` was acknowledged or read."""
        with self._lock:
            self._raise(topic, partition, end, leader_epoch)

    def identify(self, topic: str, topic_id: str | None) -> bool:
        """Note the topic's present id (None: unknown). If it has changed, drop all its ends, and return True."""
        with self._lock:
            known = self._ids.get(topic)
            if topic_id is None or topic_id == known:
                return False
            if known is not None:
                self._forget(topic)
            self._ids[topic] = topic_id
            return known is not None

    def forget(self, topic: str) -> None:
        """Drop all ends of a topic that was deleted here."""
        with self._lock:
            self._forget(topic)

    def end(self, topic: str, partition: int) -> int:
        """Return the highest observed end; 0 if there is none."""
        with self._lock:
            seen = self._seen.get(topic, {}).get(partition)
            return seen.end if seen else 0

    def doubtful(
        self, topic: str, listed: Mapping[int, Listed], before: Mapping[int, Listed], at_least: Mapping[int, int]
    ) -> list[int]:
        """Return the partitions whose answer cannot be trusted yet, and record the other answers. Both under one lock:
        recorded later, an answer would take back a record that was acknowledged meanwhile.

        before    the last answer to the same request
        at_least  ends that others know were acknowledged: without an epoch, so no epoch confirms a lower answer
        """
        with self._lock:
            found: list[int] = []
            for p, answer in listed.items():
                seen = self._seen.get(topic, {}).get(p)
                if answer.end < at_least.get(p, 0) or _is_doubtful(answer, seen, before.get(p)):
                    found.append(p)
                else:
                    self._believe(topic, p, answer)
            return found

    def believe(self, topic: str, partition: int, answer: Listed) -> None:
        """Record this answer, even below an observed end."""
        with self._lock:
            self._believe(topic, partition, answer)

    def _believe(self, topic: str, partition: int, answer: Listed) -> None:
        seen = self._seen.get(topic, {})
        if partition in seen and answer.end < seen[partition].end:
            seen[partition] = answer
        else:
            self._raise(topic, partition, answer.end, answer.leader_epoch)

    def _raise(self, topic: str, partition: int, end: int, leader_epoch: int) -> None:
        seen = self._seen.get(topic) or self._seen.setdefault(topic, {})
        known = seen.get(partition)
        if known is None:
            seen[partition] = Listed(0, end, leader_epoch)
        elif end >= known[1]:
            newest = known[2]
            seen[partition] = Listed._make((0, end, newest if newest > leader_epoch else leader_epoch))

    def _forget(self, topic: str) -> None:
        self._seen.pop(topic, None)
        self._ids.pop(topic, None)


def _is_doubtful(answer: Listed, seen: Listed | None, before: Listed | None) -> bool:
    if not answer.is_answer:
        return True
    if seen is None or answer.end >= seen.end:
        return False
    return before is None or before != answer or answer.leader_epoch <= seen.leader_epoch


def ask_offsets(
    topic: str,
    seen: HighWater,
    *,
    ask: Callable[[], dict[int, Listed]],
    topic_id: Callable[[], str | None],
    again: Callable[[], bool],
    enough: Callable[[], bool] = lambda: False,
    at_least: Mapping[int, int] | None = None,
) -> dict[int, OffsetRange]:
    """Ask for log start and log end of partitions until the answer can be trusted.

    ask       sends one request to the brokers
    topic_id  returns the topic's present id
    again     waits a little, and returns whether there is time for another request
    enough    returns whether most of the time has passed

    Raises BrokerUnavailable if a partition has no answer in all of the time, and the errors of `ask`.
    """
    before, doubtful = dict[int, Listed](), list[int]()
    was_enough = False
    while True:
        try:
            listed = ask()
        except BrokerUnavailable:
            if not was_enough:
                raise
            # The rest of the time was too short for a slow broker; its answer for most of the time stands.
            listed = before
            break
        doubtful = seen.doubtful(topic, listed, before, at_least or {})
        if doubtful and not before and seen.identify(topic, topic_id()):
            doubtful = seen.doubtful(topic, listed, before, at_least or {})
        if not (doubtful and again()):
            break
        before, was_enough = listed, enough()
    for p in doubtful:
        if not listed[p].is_answer:
            raise BrokerUnavailable("Kafka gives no offset of a partition", hint="", topic=topic, partition=p)
        seen.believe(topic, p, listed[p])
    return {p: OffsetRange(answer.start, answer.end) for p, answer in listed.items()}


def known_id(describe: Callable[[str], TopicDescription | None], topic: str) -> str | None:
    """Return the topic's id; None if it is unknown: a broker that knows of no topic may only learn of it late."""
    try:
        described = describe(topic)
    except Unavailable:
        return None
    return None if described is None else described.topic_id
