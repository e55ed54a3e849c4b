"""The checks of a plan: the snapshot is there and the log reaches back, and the anchors hold.

The first two are made again once the lease is written: what they find then stays as long as the lease does. The others
are made once, because what is read is verified record by record anyway. `SnapshotFailed` is what reading finds later.
"""

from collections.abc import Mapping
from typing import NamedTuple

from statelog.errors import BeyondEnd, CorruptRun, NotFound, OffsetGone
from statelog.reading.plan import Plan
from statelog.schemas.ledger.records import given_up, not_given_up
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.kafka import OffsetRange
from statelog.storage.log.anchors import check_anchors, check_data_anchors
from statelog.storage.log.log import Log

__all__ = [
    "LogOffsets",
    "SnapshotFailed",
    "check_held",
    "check_manifest",
    "check_plan",
    "check_reach",
    "check_records",
    "log_offsets",
]


class SnapshotFailed(Exception):
    """A run of the snapshot cannot be read; `error` is what callers get if there is no way around it.

    `is_copy` says that it was a local copy: to read the run once more may succeed, and the snapshot is not to blame.
    """

    def __init__(self, error: CorruptRun | NotFound) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_copy = False


class LogOffsets(NamedTuple):
    """Log start and log end, half-open, of the data partitions and of the ledger, asked at one moment."""

    data: Mapping[int, tuple[int, int]]
    ledger: tuple[int, int]


def log_offsets(log: Log, plan: Plan) -> LogOffsets:
    """Log start and log end of all partitions and of the ledger, now. Raises BrokerUnavailable.

    What the plan knows to have been there is asked for again before it is taken for lost.
    """
    ledger = log.kafka.offsets(log.ledger_topic, [0], at_least={0: plan.position})[0]
    data = log.data_offsets(at_least=not_given_up(plan.state.accepted, plan.state.committed_positions))
    return LogOffsets({p: (start, end) for p, (start, end) in data.items()}, (ledger.start, ledger.end))


def check_held(log: Log, plan: Plan) -> LogOffsets | None:
    """Whether the log and the store still hold what the plan reads; the offsets, or None for a snapshot alone.

    Raises OffsetGone if truncation or cleanup was faster (plan again), BeyondEnd if the log lost its end.
    """
    if plan.manifest is not None:
        check_manifest(log, plan.manifest)
    if plan.is_alone:
        return None
    offsets = log_offsets(log, plan)
    check_reach(plan, offsets, log.name)
    return offsets


def check_plan(log: Log, plan: Plan) -> None:
    """As `check_held`, and as `check_records`. Raises as both."""
    check_records(log, plan, check_held(log, plan))


def check_records(log: Log, plan: Plan, found: LogOffsets | None) -> None:
    """Whether the records are still those that the snapshot was built on, in the log that was `found`.

    Raises AnchorMismatch if records were replaced, BeyondEnd, BrokerUnavailable.
    """
    if found is None:
        return
    anchors = plan.manifest.anchors if plan.manifest else ()
    ledger = [anchor for anchor in anchors if anchor.topic == "ledger"]
    check_anchors(log, ledger, there={0: OffsetRange(*found.ledger)})
    there = {partition: OffsetRange(*held) for partition, held in found.data.items()}
    check_data_anchors(log, plan.manifest, plan.partitions, plan.state.accepted, there)


def check_manifest(log: Log, manifest: Manifest) -> None:
    """Whether a snapshot is still there. Raises OffsetGone if it was cleaned up."""
    try:
        found = log.manifests.read(manifest.number).manifest.nonce
    except NotFound:
        found = b""
    if found != manifest.nonce:
        raise OffsetGone(
            "the snapshot was superseded and cleaned up while the recovery was planned",
            log=log.name,
            manifest=manifest.number,
            hint="Recover again",
        )


def check_reach(plan: Plan, offsets: LogOffsets, log: str) -> None:
    """Compare a plan with what the log holds now.

    Raises BeyondEnd if the ledger ends below the position, or a partition below its committed position without an
    accepted loss; OffsetGone if a partition starts above what is to be read, or the ledger above what a follower
    reads next, which planning again may mend.
    """
    if plan.position > offsets.ledger[1]:
        raise BeyondEnd(
            "the ledger ends below a position that was there",
            log=log,
            position=plan.position,
            end_offset=offsets.ledger[1],
            hint="The ledger lost its tail: restore the topic, or recover a retained position below",
        )
    if plan.position < offsets.ledger[0] and not plan.is_of_changes:
        raise OffsetGone(
            "the ledger starts above the position of the plan",
            log=log,
            position=plan.position,
            log_start=offsets.ledger[0],
            hint="The log was truncated past this state: recover again",
        )
    for partition in plan.partitions:
        _check_end(plan, partition, offsets.data[partition][1], log)
    for partition, first_offset in plan.next_offsets.items():
        log_start = offsets.data[partition][0]
        if log_start > first_offset:
            raise OffsetGone(
                "the log starts above an offset that has to be replayed",
                log=log,
                partition=partition,
                needed_offset=first_offset,
                log_start=log_start,
                manifest=plan.manifest_number,
                position=plan.position,
                hint="More was truncated than the snapshots cover: restore the topic or a newer manifest",
            )


def _check_end(plan: Plan, partition: int, end_offset: int, log: str) -> None:
    committed = plan.state.committed_positions.get(partition, 0)
    if committed > end_offset and not given_up(plan.state.accepted, partition, end_offset, committed):
        raise BeyondEnd(
            "a partition ends below an offset that was committed",
            log=log,
            partition=partition,
            end_offset=end_offset,
            committed_position=committed,
            hint="Acknowledged records are gone: restore the topic, or accept the loss",
        )
