"""Topics whose records Kafka deletes by their age: how old is what is still needed, and is that near the end?

Rounds alarm, and readers warn, once a need has come half of the way (`ALARM_SHARE`). A round puts a manifest at least
every eighth of it (`RENEW_SHARE`), whether there is anything new or not: so on a log that is idle, too, what the kept
snapshots need stays young, and only rounds that stopped make it old. Decides nothing about what is lost: what has aged
out is missed where it is read, as everything is.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from statelog.errors import OffsetGone
from statelog.formatting import show_duration
from statelog.history import records_at
from statelog.log import Log

_LOG = logging.getLogger("statelog.log")
ALARM_SHARE = 1 / 2
RENEW_SHARE = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRecord:
    """A record that something still needs: the first one of a partition, or of the ledger."""

    topic: str
    partition: int
    offset: int
    held_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingRecord(NeededRecord):
    """A need that is `age_s` old, where Kafka deletes records after `retention_s`; `is_gone`: it did."""

    age_s: float
    retention_s: float
    is_gone: bool

    @property
    def is_alarming(self) -> bool:
        """Whether it has come so far that somebody has to look."""
        return self.is_gone or self.age_s >= self.retention_s * ALARM_SHARE


def oldest_need(log: Log, needs: list[NeededRecord], *, now_s: float, made_s: float) -> AgingRecord | None:
    """The oldest of these needs; None if there is none, or Kafka keeps records for ever.

    `made_s` is when the oldest snapshot that has any of them was made, for records without a time of the broker's.
    Raises BrokerUnavailable.
    """
    retention_s = log.retention_s
    if retention_s is None:
        return None
    found: list[AgingRecord] = []
    for topic in (log.data_topic, log.ledger_topic):
        own = {need.partition: need for need in needs if need.topic == topic}
        times_s = _times_s(log, topic, {partition: need.offset for partition, need in own.items()})
        for partition, need in own.items():
            time_s = times_s.get(partition)
            since_s = made_s if time_s is None or time_s < 0 else time_s
            age_s = max(0.0, now_s - since_s)
            found.append(
                AgingRecord(
                    topic=topic, partition=partition, offset=need.offset, held_by=need.held_by,
                    age_s=age_s, retention_s=retention_s, is_gone=time_s is None,
                )
            )  # fmt: skip
    return max(found, key=lambda need: (need.is_gone, need.age_s), default=None)


def _times_s(log: Log, topic: str, offsets: Mapping[int, int]) -> dict[int, float]:
    """The broker's time of one record of each partition, or a negative number; a partition is absent if it is gone."""
    while offsets:
        there = log.kafka.offsets(topic, sorted(offsets))
        held = {p: offset for p, offset in offsets.items() if there[p].start <= offset}
        with suppress(OffsetGone):  # Since it was asked: it is asked again.
            found = records_at(log.kafka, topic, held)
            return {p: found[p].timestamp_ms / 1000 if p in found else -1.0 for p in held}  # A gap has no time.
    return {}


def warn_of_age(log: Log, committed_ms: int, now_s: float) -> None:
    """A log line for a reader, if the oldest commit that no snapshot holds nears the age at which Kafka deletes."""
    retention_s, age_s = log.retention_s, now_s - committed_ms / 1000
    if retention_s is not None and committed_ms >= 0 and age_s >= retention_s * ALARM_SHARE:
        age, limit = show_duration(age_s), show_duration(retention_s)
        text = (
            "%s: what was committed %s ago is in no snapshot, and Kafka deletes records after %s: run the materializer"
        )
        _LOG.warning(text, log.name, age, limit)
