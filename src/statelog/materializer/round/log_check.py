"""Checks before a round reads or writes anything: the log and its newest snapshot still fit together.

Invariants checked here, for the ledger and every data partition:
    log start <= what replay needs <= log end, and every anchor that still exists is the same record.

Offsets whose loss a person accepted count as there. A log start that is too high is OffsetGone, and the round asks
for the newest manifest again before it believes that: its plan may only be old.
"""

from statelog.errors import BeyondEnd, OffsetGone
from statelog.schemas.ledger.records import LossRange, given_up, not_given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.kafka import OffsetRange
from statelog.storage.log.evidence import check_anchors, check_data_anchors
from statelog.storage.log.log import Log

__all__ = ["check_data", "check_ledger", "prove_truncation"]


def check_ledger(log: Log, newest: Manifest | None) -> None:
    """Before the ledger is folded. Raises OffsetGone, BeyondEnd, AnchorMismatch, BrokerUnavailable."""
    needed = newest.position if newest else 0
    there = log.kafka.offsets(log.ledger_topic, [0], at_least={0: needed})[0]
    _check(log.ledger_topic, 0, needed, there, ())
    if newest:
        check_anchors(log, [anchor for anchor in newest.anchors if anchor.topic == "ledger"])


def check_data(log: Log, newest: Manifest | None, target: LedgerState) -> None:
    """Before data is read, with what was accepted up to `target`. Raises as `check_ledger` does."""
    needed = newest.next_offsets if newest else {}
    there = log.data_offsets(at_least=not_given_up(target.accepted, needed))
    for partition, held in there.items():
        _check(log.data_topic, partition, needed.get(partition, 0), held, target.accepted)
    check_data_anchors(log, newest, range(log.descriptor.partitions), target.accepted, there)


def _check(topic: str, partition: int, needed: int, there: OffsetRange, accepted: tuple[LossRange, ...]) -> None:
    if there.start > needed and not given_up(accepted, partition, needed, there.start):
        raise OffsetGone(
            "the log starts above what the newest snapshot needs",
            topic=topic,
            partition=partition,
            needed_offset=needed,
            log_start=there.start,
            hint="Something else truncated the topic: check its settings, then restore it or accept the loss",
        )
    if there.end < needed and not given_up(accepted, partition, there.end, needed):
        raise BeyondEnd(
            "the log ends below what the newest snapshot committed",
            topic=topic,
            partition=partition,
            committed_offset=needed,
            log_end=there.end,
            hint="Acknowledged records are gone: restore the topic; the snapshots still hold their changes",
        )


def prove_truncation(log: Log) -> None:
    """See that both topics let us delete records, by deleting those below offset 0, of which there are none.

    `Log.verify_anew(ROLLING_UP)` asks every round what the brokers say that we may do, and finds nothing where they do
    not say; so once in a process the deed itself is the proof. Without the right, rounds would put manifests, and Kafka
    would grow. Raises ConfigError, Unavailable.
    """
    for topic in (log.data_topic, log.ledger_topic):
        log.kafka.delete_records(topic, {0: 0})
