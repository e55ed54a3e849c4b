"""An epoch: the Open that begins it, and the `Grant` that a valid Open gives, a value that other processes can use.

To open a writer is to read the ledger, check the caller's expectation, write an Open, and read its verdict. A valid
Open fences every earlier epoch that shares a partition or the name, and resolves its unknown outcomes: its records lie
before the Open and are final, or will never be valid. Tasks write chunks under a grant without the ledger or the DFS;
the process that opened commits their handles. A grant fences nothing, and expires when a newer Open lands.

Invariants:
- Every Open goes out through a producer without records in flight that could follow it: a new one, one that was made
  ahead and has sent nothing, or one whose Opens so far were acknowledged, and are void.
- If an Open is void because a record came in between, the next follows at once, from the fold that judged it. So an
  owner that commits every few milliseconds cannot starve the writer that is taking over.
- An Open of unknown outcome is not waited for: the next one resolves it.
- Ranges that were accepted as lost are filled with void records before the first chunk, so that commits may list it.
- On success the fold ends right behind our Open, and only we can change the state of our partitions from there.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from statelog.closing import undone_by_errors
from statelog.environment import current_environment
from statelog.errors import (
    BeyondEnd,
    CheckpointMismatch,
    ConfigError,
    Fenced,
    IdentityChanged,
    OutcomeUnknown,
    StatelogError,
)
from statelog.kafka.port import OffsetRange, Producer
from statelog.log import Log
from statelog.log.log import check_log
from statelog.log.producers import append_all
from statelog.schemas.changes.changes import change_bytes_max, change_schema
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Handle, Step
from statelog.schemas.ledger.place import ORIGIN, LastRecord, Metadata, Place
from statelog.schemas.ledger.records import VOID_VALUE, LossRange, Open, encode, is_forfeited, not_forfeited
from statelog.schemas.ledger.state import NO_EPOCH, LastCommit, LedgerState, LiveEpoch
from statelog.schemas.names import COPIER, check_writer_name, whole_numbers
from statelog.schemas.topic_policy import WRITING
from statelog.schemas.values.schema import ValueSchema

_LOG = logging.getLogger("statelog.log")
_ATTEMPTS = 8
_OPENS = 32
"""How many Opens a producer sends before everything is checked again."""
_MOVED = (
    "%s: `statelog copy --finish` took this log over at ledger offset %d. No copy has later commits to this one, unless"
    " it is finished again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to persist and commit under an epoch.

    base          the writer's last valid checkpoint when it opened
    metadata      the metadata of that commit; both are final
    value_schema  the one for new changes
    witness       the place up to which the ledger was folded when the grant was made
    """

    descriptor: Descriptor
    value_schema: ValueSchema
    writer: str
    epoch: int
    nonce: bytes
    partitions: tuple[int, ...]
    base: Checkpoint = NO_CHECKPOINT
    metadata: Metadata = field(default_factory=dict[str, str])
    witness: Place = ORIGIN

    @property
    def facts(self) -> Mapping[str, str]:
        """The facts by which errors name it."""
        return {"log": self.descriptor.name, "writer": self.writer}

    @property
    def change_bytes_max(self) -> int:
        """The size of the largest change that a chunk holds."""
        schema = change_schema(self.descriptor.key_type, self.value_schema.arrow_type)
        return change_bytes_max(self.descriptor.record_bytes_max, schema)

    def handle(self, base: Checkpoint, steps: tuple[Step, ...]) -> Handle:
        """Make the handle of checkpoints written under this grant; the first continues `base`."""
        return Handle(
            identity=self.descriptor.identity,
            writer=self.writer,
            epoch=self.epoch,
            nonce=self.nonce,
            base=base,
            steps=steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGrant:
    """The right to write the changes of one checkpoint, which continues `base`. Pickles."""

    grant: Grant
    base: Checkpoint
    checkpoint_id: int


@dataclass(slots=True)
class EpochClients:
    """A grant, and the producer through which it was opened. The owner closes it."""

    grant: Grant
    producer: Producer
    last: LastCommit | None
    """The writer's last commit when it opened."""

    def close(self) -> None:
        """Release the producer. Idempotent."""
        self.producer.close()


def open_epoch(
    log: Log,
    writer: str,
    *,
    partitions: Sequence[int] | None = None,
    expect: int | None = None,
    ours: Collection[bytes] | None = None,
    judged: int | None = None,
) -> EpochClients:
    """Open `writer` on `partitions` (None: all).

    expect  the id of the checkpoint to resume from (0: none yet); None accepts any
    ours    nonces of this process. Raise Fenced, with the ledger position, if the partitions and the name belong to
            none of them: a re-open never takes them back from another writer
    judged  the newest epoch on them (`LedgerFold.prior`) that the caller has seen. Raise Fenced if a newer one was
            opened by anyone else

    Raises CheckpointMismatch, Fenced, OutcomeUnknown, Damaged, Unavailable, ConfigError.
    """
    check_log(log)
    check_writer_name(writer)
    taken, environment = owned_partitions(log.descriptor, partitions), current_environment()
    issued = None if ours is None and judged is None else set(ours or ())
    failure: StatelogError = Fenced("other writers keep opening at the same time", writer=writer, log=log.name)
    log.verify(WRITING)

    def make(fold: LedgerFold) -> Open:
        _check_expected(log, fold, writer, expect)
        _check_still_ours(log, fold, writer, taken, issued, judged)
        nonce = environment.nonce()
        if issued is not None:
            issued.add(nonce)
        return fold.next_open(writer, taken, nonce, log.place)

    for _ in range(_ATTEMPTS):
        try:
            with log.checking_cluster():
                opened = _attempt(log, writer, taken, make)
        except OutcomeUnknown as error:
            failure = error  # The next Open resolves it.
            continue
        if opened is not None:
            return opened
    raise failure


def grant_of(log: Log, fold: LedgerFold, live: LiveEpoch) -> Grant:
    """Return the grant that a live Open gives, as of the fold; without a witness."""
    last = fold.last_commit(live.writer)
    return Grant(
        descriptor=log.descriptor,
        value_schema=log.value_schemas.newest(),
        writer=live.writer,
        epoch=live.epoch,
        nonce=live.nonce,
        partitions=tuple(sorted(live.partitions)),
        base=fold.last_checkpoint(live.writer),
        metadata=last.metadata if last else {},
    )


def resume_grant(log: Log, grant: Grant) -> EpochClients:
    """Make clients for a grant that another process of the same job opened. Writes nothing to the ledger.

    The ledger must reach the grant's witness. Raises Fenced if the grant is over, IdentityChanged if it is another
    log's, Damaged, Unavailable.
    """
    if grant.descriptor.identity != log.descriptor.identity:
        raise IdentityChanged("the grant was given on another log", writer=grant.writer, log=log.name)
    log.evidence.check_ledger(places=[grant.witness])
    last = log.history.ask(lambda fold: live_commit(fold, grant))
    return EpochClients(grant, log.kafka.producer(), last)


def live_commit(fold: LedgerFold, grant: Grant) -> LastCommit | None:
    """Return the last commit under a grant. Raises Fenced if the grant is over."""
    check_live(fold, grant)
    return fold.last_commit(grant.writer)


def check_live(fold: LedgerFold, grant: Grant) -> None:
    """Raise Fenced if the grant is over."""
    live = fold.live_epoch(grant.epoch)
    if live is None or live.nonce != grant.nonce:
        raise Fenced("the grant has expired: another writer took over", **grant.facts)


def _attempt(
    log: Log, writer: str, partitions: tuple[int, ...], make: Callable[[LedgerFold], Open]
) -> EpochClients | None:
    """Check the log, then send Opens until one is valid. Return None if another record came before each of them.

    `make` returns an Open that may be sent now, or raises.
    """
    producer = log.warm_producer.take(log.ledger.clock()) or log.kafka.producer()
    with undone_by_errors(producer.close):
        producer.connect()  # In the background: it takes about as long as the checks.
        view = log.history.read()
        there = _check_data(log, view.state, partitions)
        log.evidence.check_data_anchors(
            log.manifests.newest(max_age_s=log.recheck_s), partitions, view.state.accepted, there
        )
        log.evidence.check_witnesses(view.state, there)
        for _ in range(_OPENS):
            opened = _open(log, producer, writer, partitions, make)
            if opened is not None:
                return opened
    producer.close()
    return None


def _open(
    log: Log, producer: Producer, writer: str, partitions: tuple[int, ...], make: Callable[[LedgerFold], Open]
) -> EpochClients | None:
    """Send one Open. Return None if it is void because another record came in between."""
    sent: list[tuple[Open, LastCommit | None]] = []

    def note(fold: LedgerFold) -> Open:
        sent.append((make(fold), fold.last_commit(writer)))
        return sent[-1][0]

    epoch = log.history.open(producer, note)
    if epoch is None:
        return None
    record, last = sent[-1]  # The Open is valid, so this is still the writer's last commit.
    moved, accepted = log.history.ask(lambda fold: (fold.newest_epoch(COPIER), fold.accepted))
    if moved != NO_EPOCH:
        _LOG.warning(_MOVED, log.name, moved)
    _fill_forfeited(log, accepted, producer, partitions)
    grant = Grant(
        descriptor=log.descriptor,
        value_schema=log.value_schemas.newest(),
        writer=writer,
        epoch=epoch,
        nonce=record.nonce,
        partitions=partitions,
        base=record.last,
        metadata=last.metadata if last else {},
        witness=Place(epoch + 1, LastRecord.of(epoch, encode(record))),
    )
    return EpochClients(grant, producer, last)


def owned_partitions(log: Descriptor, partitions: Sequence[int] | None) -> tuple[int, ...]:
    """Return these partitions (None: all), ascending. Raises ConfigError for none, or one that the log lacks."""
    count = log.partitions
    wanted = range(count) if partitions is None else partitions
    taken = whole_numbers("partitions", wanted, example="partitions=[0, 1]")
    if taken and taken[0] >= 0 and taken[-1] < count:
        return taken
    text, hint = "the log has no such partition", f"Its partitions are 0 to {count - 1}"
    if not taken:
        text = "a writer needs at least one partition of its log"
        hint = "A partition takes one writer at a time; a worker with an empty share has nothing to write"
    raise ConfigError(text, hint=hint, partitions=str(partitions), log_partitions=count)


def _check_data(log: Log, state: LedgerState, partitions: Sequence[int]) -> dict[int, OffsetRange]:
    """Return log start and log end of all partitions. Raises BeyondEnd if one of `partitions` ends below its committed
    position, unless the missing range was accepted as lost: a chunk below that position could never be committed.
    """
    committed = {p: state.committed_positions.get(p, 0) for p in partitions}
    there = log.data_offsets(at_least=not_forfeited(state.accepted, committed))
    for partition in partitions:
        lost = LossRange(partition, there[partition].end, committed[partition])
        if not is_forfeited(state.accepted, *lost):
            raise BeyondEnd(
                "the log ends below an offset that was committed",
                topic=log.data_topic,
                partition=partition,
                log_end=lost.start_offset,
                committed_position=lost.end_offset,
                hint="The brokers lost acknowledged changes: restore them, or accept the loss by name",
            )
    return there


def _fill_forfeited(log: Log, accepted: Collection[LossRange], producer: Producer, partitions: Sequence[int]) -> None:
    """Fill partitions whose end was accepted as lost with void records, up to their committed positions.

    All others reach theirs, else no Open is sent. Writers that do this concurrently only use up offsets. Raises
    OutcomeUnknown: the next Open fills the rest.
    """
    lossy = {lost.partition for lost in accepted} & set(partitions)
    if not lossy:
        return
    committed = log.history.ask(lambda fold: {p: fold.committed_position(p) for p in lossy})
    for partition, (_, end) in log.kafka.offsets(log.data_topic, sorted(committed)).items():
        if end < committed[partition]:
            append_all(producer, log.data_topic, partition, VOID_VALUE, committed[partition] - end)


def _check_still_ours(
    log: Log,
    fold: LedgerFold,
    writer: str,
    partitions: tuple[int, ...],
    ours: Collection[bytes] | None,
    judged: int | None,
) -> None:
    prior = fold.prior(writer, partitions)
    newest = fold.live_epoch(prior)
    if ours is None or prior == judged or (newest is not None and newest.nonce in ours):
        return
    by_writer = newest.writer if newest else None
    text, at = "another writer took over", fold.position
    raise Fenced(text, log=log.name, writer=writer, by_writer=by_writer, position=at)


def _check_expected(log: Log, fold: LedgerFold, writer: str, expect: int | None) -> None:
    found = fold.last_checkpoint(writer).id
    if expect not in (None, found):
        raise CheckpointMismatch(
            f"the caller resumes from checkpoint {expect}, but the log is at {found}",
            log=log.name,
            writer=writer,
            expected=expect,
            found=found,
            hint="Resume from last_commit. To go back, commit the difference: history is never rewound",
        )
