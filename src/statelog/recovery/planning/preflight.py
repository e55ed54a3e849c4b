"""The checks of a plan: the snapshot is there and the log reaches back, and the anchors hold.

The first two are made again once the lease is written: what they find then stays as long as the lease does. The others
are made once, because what is read is verified record by record anyway.
"""

from statelog.errors import NotFound, OffsetGone
from statelog.recovery.planning.planner import log_offsets
from statelog.recovery.planning.recovery_plan import LogOffsets, RecoveryPlan, check_reach
from statelog.storage.kafka import OffsetRange
from statelog.storage.log.anchors import check_anchors, check_data_anchors
from statelog.storage.log.log import Log

__all__ = ["check_held", "check_plan"]


def check_held(log: Log, plan: RecoveryPlan) -> LogOffsets | None:
    """Whether the log and the store still hold what the plan reads; the offsets, or None for a snapshot alone.

    Raises OffsetGone if truncation or cleanup was faster (plan again), BeyondEnd if the log lost its end.
    """
    _check_manifest(log, plan)
    if plan.is_alone:
        return None
    offsets = log_offsets(log, plan)
    check_reach(plan, offsets, log.name)
    return offsets


def check_plan(log: Log, plan: RecoveryPlan) -> None:
    """As `check_held`, and whether the records are still those that the snapshot was built on.

    Raises as that, and AnchorMismatch if records were replaced.
    """
    offsets = check_held(log, plan)
    if offsets is None:
        return
    anchors = plan.manifest.anchors if plan.manifest else ()
    check_anchors(log, [anchor for anchor in anchors if anchor.topic == "ledger"])
    there = {partition: OffsetRange(*held) for partition, held in offsets.data.items()}
    check_data_anchors(log, plan.manifest, plan.partitions, plan.state.accepted, there)


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
