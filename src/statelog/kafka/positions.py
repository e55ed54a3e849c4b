"""High-water marks: how far this process has seen the logs of a cluster reach.

An end that a broker lists is a hint: a leader that was deposed while it was paused answers with its own end until it
hears of its successor, and a connection that broke is answered with no offset at all. So within a process an end never
goes back, unless it is sure that the log did. This module owns what was seen, and the decision what to believe; it
asks nothing itself: questions, and waiting between them, come in through parameters.

An end below one that was seen is believed only if
- the leader that answers is newer than the one behind what was seen, and a second answer says the same; or
- the topic is another one of the same name (then all that was seen of it is forgotten); or
- asking found nothing else in all the time that there was.

Log starts may go back: a broker that crashed may have forgotten its last truncation.
"""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from statelog.errors import BrokerUnavailable, Unavailable
from statelog.kafka.port import OffsetRange, TopicDescription

UNKNOWN_EPOCH = -1


class Listed(NamedTuple):
    """A broker's answer for one partition, as it came: a negative offset is no answer."""

    start: int
    end: int
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def is_answer(self) -> bool:
        """Whether it names both offsets, and they can be those of one log."""
        return 0 <= self.start <= self.end


class HighWater:
    """The highest end of each partition that was seen, with the leader's epoch behind it. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[int, Listed]] = {}
        self._ids: dict[str, str] = {}

    def unlock(self) -> None:
        """In a forked child: the thread that may have held the lock is not there to release it."""
        self._lock = threading.Lock()

    def reached(self, topic: str, partition: int, end: int, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """A record below `end` was acknowledged or read."""
        with self._lock:
            self._raise(topic, partition, end, leader_epoch)

    def identify(self, topic: str, topic_id: str | None) -> bool:
        """The topic has this id now (None: nobody could say). True if it is another than before: all is forgotten."""
        with self._lock:
            known = self._ids.get(topic)
            if topic_id is None or topic_id == known:
                return False
            if known is not None:
                self._forget(topic)
            self._ids[topic] = topic_id
            return known is not None

    def forget(self, topic: str) -> None:
        """The topic was deleted here."""
        with self._lock:
            self._forget(topic)

    def end(self, topic: str, partition: int) -> int:
        """The highest end that was seen, 0 if none was."""
        with self._lock:
            seen = self._seen.get(topic, {}).get(partition)
            return seen.end if seen else 0

    def doubtful(
        self, topic: str, listed: Mapping[int, Listed], before: Mapping[int, Listed], at_least: Mapping[int, int]
    ) -> list[int]:
        """The partitions whose answer is not to be believed yet; `before` is the last answer to the same question. The
        others' stand, and in the same step: what is acknowledged right behind it would be taken back by a later one.

        What others say was acknowledged, `at_least`, has no epoch, so no answer below it is confirmed by one.
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
        """This answer stands, also where it is below what was seen."""
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
    """Log start and log end of partitions, asked until the answer can be believed.

    `ask` is one question to the brokers; `topic_id` says who the topic is now; `again` waits a little before the next
    question and says whether there is time for one; `enough` says whether most of the time has passed. Raises
    BrokerUnavailable if a partition gave no answer in all that time, and whatever `ask` raises.
    """
    before, doubtful = dict[int, Listed](), list[int]()
    was_enough = False
    while True:
        try:
            listed = ask()
        except BrokerUnavailable:
            if not was_enough:
                raise
            # The time that was left was too short for a slow broker; what it said for most of the time stands.
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
    """Who the topic is, None if nobody could say: a broker that knows of none may only be late to learn of it."""
    try:
        described = describe(topic)
    except Unavailable:
        return None
    return None if described is None else described.topic_id
