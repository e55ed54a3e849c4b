"""Accepting a loss: a person accepts ranges of the data topic as lost, or the rest of the ledger as the history.

Owns the decision what counts, and the AcceptLoss and Restarts that record it (docs/format-ledger.md). The system itself
never runs it. A log without its topics continues as a copy of its newest snapshot (`statelog.materializer.copy`).

Invariants:
- A range holds only committed offsets: beyond them, it would hide future losses.
- The data ranges that are accepted with a ledger's loss are ones that the newest snapshot holds: they lose no change.
- Nothing is accepted unless something is lost, nor on one answer of Kafka that may be stale, nor on another cluster:
  writers may go on there.
- The last Restart lies at or above the snapshot's position, and above every witness in the data topic. After a crash,
  run the acceptance again: the second one's Restarts replace the first one's.
- Operator and reason are stored first, in a file that nothing deletes.
"""

from collections.abc import Collection
from contextlib import closing, suppress

from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    ConfigError,
    DataLoss,
    NotFound,
    OutcomeUnknown,
)
from statelog.history import append_record
from statelog.log.log import Log, check_log
from statelog.log.producers import append_up_to
from statelog.schemas.ledger.place import Place, has_utf8
from statelog.schemas.ledger.records import (
    AcceptLoss,
    LossRange,
    Restart,
    check_committed,
    encode,
    is_forfeited,
)
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import check_kind, check_whole
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import LEDGER_WRITING
from statelog.store.files import put_loss
from statelog.store.port import Store


def accept_data_loss(log: Log, ranges: Collection[LossRange], *, reason: str, operator: str) -> int:
    """Record that a person accepts these ranges of the data topic as lost. Return the ledger offset.

    Raises ConfigError, OutcomeUnknown, Damaged, Unavailable.
    """
    check_log(log)
    check_acceptance(reason, operator)
    check_kind("ranges", ranges, Collection, example="[LossRange(0, 41, 43)]")
    for one in ranges:
        check_kind("a range", one, LossRange, example="LossRange(0, 41, 43): a partition, and offsets of it")
        for name, number in one._asdict().items():
            check_whole(f"{name} of a range", number, 0)
    if not ranges:
        raise ConfigError("accepting a loss needs ranges")
    log.verify(LEDGER_WRITING)
    check_committed(ranges, log.evidence.check_ledger().state.committed_positions)
    return _accept(log, ranges, reason, operator)


def accept_ledger_loss(log: Log, *, reason: str, operator: str, seen: Collection[Place] = ()) -> int:
    """Record that a person accepts the ledger's loss. Return the offset of the Restart that counts. `seen`: places that
    others observed, where nothing else shows the loss.

    The newest snapshot becomes the history if it reaches further than the ledger, or the ledger has other records than
    those below it; else the rest of the ledger does. Open writers are fenced, and commits in neither are lost. Ranges
    that the data topic lacks below the snapshot's committed positions are accepted, too: the snapshot has them.

    Raises ConfigError if nothing is lost or a text is missing, NotFound if a run of that snapshot is missing,
    OutcomeUnknown (run it again), Damaged, Unavailable.
    """
    check_log(log)
    check_acceptance(reason, operator)
    log.verify(LEDGER_WRITING)
    newest = log.manifests.newest()
    reach = newest.position if newest else 0
    witness = max([_witness(log), *(place.position for place in seen)])
    end = log.ledger.end(at_least=max(reach, witness, 1))
    is_replaced = end < reach or _is_other(log)
    is_lossy = is_replaced or end < 1 or _is_torn(log, seen)
    if is_lossy:
        if newest is not None and is_replaced:
            check_runs(log.store, newest)
        position = reach if is_replaced else 0
        record = Restart(digest=log.descriptor.digest, position=position, reason=reason, operator=operator)
        put_loss(log.store, record)
        last = append_restarts(log, record, max(position, witness - 1, end))
        log.history.read_to(last + 1)
    state = log.history.read().state
    ranges = _in_snapshot_alone(log, newest, state) if newest and state.restarted >= reach else ()
    if not (is_lossy or ranges):
        raise ConfigError("the ledger lost nothing", log=log.name, log_end=end, hint="There is nothing to accept")
    if ranges:
        _accept(log, ranges, reason, operator)
    return state.restarted


def _in_snapshot_alone(log: Log, newest: Manifest, state: LedgerState) -> tuple[LossRange, ...]:
    """Return the ranges below the snapshot's committed positions that the data topic lacks or has otherwise."""
    anchors = {anchor.partition: anchor for anchor in newest.anchors if anchor.topic == "data"}
    there = log.data_offsets(at_least=newest.next_offsets)
    found: list[LossRange] = []
    for partition, end in newest.next_offsets.items():
        start = there[partition].end
        try:
            log.evidence.check_anchors([anchors[partition]] if partition in anchors and start >= end else [])
        except AnchorMismatch:
            start = end - 1
        if start < end and not is_forfeited(state.accepted, partition, start, end):
            found.append(LossRange(partition, start, end))
    return tuple(found)


def _accept(log: Log, ranges: Collection[LossRange], reason: str, operator: str) -> int:
    record = AcceptLoss(ranges=tuple(ranges), reason=reason, operator=operator)
    put_loss(log.store, record)
    with closing(log.kafka.producer()) as producer:
        return append_record(producer, log.ledger_topic, record)


def check_acceptance(reason: str, operator: str) -> None:
    """Raise ConfigError unless reason and operator are texts, and not empty."""
    for name, text in (("reason", reason), ("operator", operator)):
        check_kind(name, text, str, example="text")
    if not reason.strip() or not operator.strip():
        raise ConfigError("accepting a loss needs a reason and an operator")
    if not (has_utf8(reason) and has_utf8(operator)):
        raise ConfigError("the reason, or the operator, is not UTF-8", hint="Type it again, in a UTF-8 terminal")


def _witness(log: Log) -> int:
    """Return the highest ledger position that this process, or the writer of a chunk, has observed."""
    with log.replay(log.manifests.newest()) as replay:
        with suppress(DataLoss):  # Expected here; the fold up to the loss has the committed positions.
            replay.fold_to(log.ledger.end())
        return max(log.position, furthest_witness(log, replay.fold.freeze()))


def furthest_witness(log: Log, state: LedgerState) -> int:
    """Return the highest position that one of the last chunks behind the committed positions names; 0 if none does."""
    return max((place.position for place in log.evidence.witnesses(state, log.data_offsets())), default=0)


def _is_other(log: Log) -> bool:
    """Return whether the newest snapshot was built on other records than the ledger has now."""
    try:
        with log.replay(log.manifests.newest()) as replay:
            replay.fold_to(log.ledger.end())
    except DataLoss as error:
        return isinstance(error, AnchorMismatch)
    return False


def _is_torn(log: Log, seen: Collection[Place]) -> bool:
    """Return whether the ledger, or a witness of it, proves a loss of records."""
    try:
        log.evidence.check_ledger(places=seen)
    except (AnchorMismatch, BeyondEnd):
        return True
    return False


def check_runs(store: Store, manifest: Manifest) -> None:
    """Raise NotFound if a snapshot, which is to be the history, is not whole."""
    sizes = {info.path: info.size_bytes for info in store.list("runs/")}
    for run in manifest.runs:
        if sizes.get(run.path) != run.size_bytes:
            what = "a run of the newest snapshot is missing, or has another size"
            hint = "Restore it from a copy of the store first: nothing else holds what the ledger lost"
            raise NotFound(what, path=run.path, manifest=manifest.number, hint=hint)


def append_restarts(log: Log, record: Restart, offset: int) -> int:
    """Append the record until one of them lies at `offset` or above. Return the offset of the last one."""
    try:
        with closing(log.kafka.producer()) as producer:
            return append_up_to(producer, log.ledger_topic, 0, encode(record), log.ledger.end() - 1, offset)
    except OutcomeUnknown as error:
        raise error.restated(hint="Accept the loss again: that resolves it") from error
