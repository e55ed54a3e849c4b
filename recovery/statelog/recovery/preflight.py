"""The checks before the first byte is read: the snapshot is still there, the log reaches back, the anchors still hold.

They run after the lease was written: what they find cannot be truncated or cleaned up as long as the lease stands.
"""

from collections.abc import Iterable

import xxhash

from statelog.recovery.plan import RecoveryPlan, anchors_to_check, check_reach
from statelog.recovery.planner import log_offsets
from statelog.schemas.errors import AnchorMismatch, NotFound, OffsetGone
from statelog.schemas.manifest import Anchor
from statelog.storage.kafka import OffsetRange
from statelog.storage.log import Log

__all__ = ["check_plan"]


def check_plan(log: Log, plan: RecoveryPlan, *, stall_timeout_s: float) -> None:
    """Raise OffsetGone if the plan came too late (plan again), BeyondEnd or AnchorMismatch if records were lost."""
    _check_manifest(log, plan)
    offsets = log_offsets(log)
    check_reach(plan, offsets, log.name)
    anchors = anchors_to_check(plan, offsets)
    for topic, kind in ((log.data_topic, "data"), (log.ledger_topic, "ledger")):
        _check_anchors(log, topic, [a for a in anchors if a.topic == kind], plan.manifest_number, stall_timeout_s)


def _check_manifest(log: Log, plan: RecoveryPlan) -> None:
    if plan.manifest is None:
        return
    try:
        found = log.manifests.read(plan.manifest.number).manifest.nonce
    except NotFound:
        found = b""
    if found != plan.manifest.nonce:
        raise OffsetGone(
            "the snapshot was superseded and cleaned up while the recovery was planned",
            log=log.name,
            manifest=plan.manifest.number,
            hint="Recover again",
        )


def _check_anchors(log: Log, topic: str, anchors: Iterable[Anchor], number: int, stall_timeout_s: float) -> None:
    expected = {anchor.partition: anchor for anchor in anchors}
    wanted = {anchor.partition: OffsetRange(anchor.offset, anchor.offset + 1) for anchor in expected.values()}
    reader = log.kafka.reader(topic)
    try:
        for record in reader.read(wanted, stall_timeout_s=stall_timeout_s):
            if xxhash.xxh3_64_intdigest(record.value) != expected.pop(record.partition).hash:
                raise _mismatch(topic, record.partition, record.offset, number)
    finally:
        reader.close()
    for anchor in expected.values():
        raise _mismatch(topic, anchor.partition, anchor.offset, number)


def _mismatch(topic: str, partition: int, offset: int, number: int) -> AnchorMismatch:
    return AnchorMismatch(
        "a record is not the one that the snapshot was built on",
        topic=topic,
        partition=partition,
        offset=offset,
        manifest=number,
        hint="The log lost its tail and grew again, or is another log: restore the topic",
    )
