"""Aging: the age of records that are still needed, in topics whose records Kafka deletes by age.

Rounds alarm, and readers warn, once a needed record has half of the retention's age (`ALARM_SHARE`). A round puts a
manifest at least every eighth of it (`RENEW_SHARE`), even without news. So the needs of retained snapshots stay young
on an idle log, too, and get old only if rounds stop. Nothing here decides what is lost: the reading of a deleted record
detects that.
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
    """The first needed record of a partition, or of the ledger. `held_by`: what needs it."""

    topic: str
    partition: int
    offset: int
    held_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingRecord(NeededRecord):
    """A needed record of age `age_s`. Kafka deletes records after `retention_s`; `is_gone`: it was deleted."""

    age_s: float
    retention_s: float
    is_gone: bool

    @property
    def is_alarming(self) -> bool:
        """Whether it is so old that an operator has to act."""
        return self.is_gone or self.age_s >= self.retention_s * ALARM_SHARE


def oldest_need(log: Log, needs: list[NeededRecord], *, now_s: float, made_s: float) -> AgingRecord | None:
    """Return the oldest needed record; None if there is none, or Kafka retains records for ever.

    `made_s`: when the oldest snapshot with such a need was made, for records without a broker's time. Raises
    BrokerUnavailable.
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
    """Return the broker's time of a record of each partition, or a negative number. Deleted records are left out."""
    while offsets:
        available = log.kafka.offsets(topic, sorted(offsets))
        held = {p: offset for p, offset in offsets.items() if available[p].start <= offset}
        with suppress(OffsetGone):  # Deleted meanwhile: look up the starts again.
            found = records_at(log.kafka, topic, held)
            return {p: found[p].timestamp_ms / 1000 if p in found else -1.0 for p in held}  # A gap has no time.
    return {}


def warn_of_age(log: Log, committed_ms: int, now_s: float) -> None:
    """Warn a reader if the oldest commit that is in no snapshot nears the age at which Kafka deletes."""
    retention_s, age_s = log.retention_s, now_s - committed_ms / 1000
    if retention_s is not None and committed_ms >= 0 and age_s >= retention_s * ALARM_SHARE:
        age, limit = show_duration(age_s), show_duration(retention_s)
        text = "%s: a commit of %s ago is in no snapshot, and Kafka deletes records after %s: run the materializer"
        _LOG.warning(text, log.name, age, limit)
