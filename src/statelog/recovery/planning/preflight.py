"""The checks before the first byte is read: the snapshot is still there, the log reaches back, the anchors still hold,
and nothing that lies in the data topic bears witness of a ledger that once reached further.

They run after the lease was written: what they find cannot be truncated or cleaned up as long as the lease stands.
"""

from statelog.errors import NotFound, OffsetGone
from statelog.recovery.planning.planner import log_offsets
from statelog.recovery.planning.recovery_plan import RecoveryPlan, check_reach
from statelog.storage.kafka import OffsetRange
from statelog.storage.log.anchors import check_anchors, check_data_records
from statelog.storage.log.log import Log

__all__ = ["check_plan"]


def check_plan(log: Log, plan: RecoveryPlan) -> None:
    """Raise OffsetGone if the plan came too late (plan again), BeyondEnd or AnchorMismatch if records were lost."""
    _check_manifest(log, plan)
    if plan.is_alone:
        return
    offsets = log_offsets(log, plan)
    check_reach(plan, offsets, log.name)
    anchors = plan.manifest.anchors if plan.manifest else ()
    check_anchors(log, [anchor for anchor in anchors if anchor.topic == "ledger"])
    there = {partition: OffsetRange(*held) for partition, held in offsets.data.items()}
    check_data_records(log, plan.partitions, anchors, plan.state.accepted, plan.position, there)


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
