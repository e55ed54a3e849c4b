"""Ownership: whose a writer and a log are, as the ledger says; what a batch is to the log, and whom an Open may fence.

A writer's history belongs to one query: its id is in the metadata of every commit. Spark replays a batch, with the same
id, when it died between the ledger's commit and its own commit log. That is the only replay there is, and it comes in
another run of the query: what comes in the same run is another write, and dropping it would lose its rows.

An Open ends every rival, so they are looked at first. A rival blocks the way for as long as it may be alive: a query
that opened or committed not long ago, a plain write that began not long ago and has neither committed nor been given
up. Epochs that no Spark job opened are not judged here: the last to open owns the log.

Invariants:
- A batch is skipped only if its query and its id are those of the writer's last commit, its run is not, as far as runs
  are known, and its rows are those that were committed. Other rows, another query, and any batch but the next one are
  refusals that name the way out. Nothing is guessed.
- The same query, started again, takes over at once, from another session too.
- Another query, and a plain write beside a query, fence nothing without the option takeOver or takeOverFrom; but of a
  writer that has never committed there is nothing to protect, and its next query takes over.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from statelog.errors import CheckpointMismatch, LogInUse, Misuse, OffsetGone
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import merge_bitmaps, ranges_text
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.records import VOID_VALUE, Commit, Open, decode
from statelog.schemas.ledger.state import LastCommit, LiveEpoch
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.options import WriteOptions
from statelog.spark.query_run import OF_PLAIN, OF_QUERY, query_of, same_run
from statelog.storage.kafka import OffsetRange, Record
from statelog.storage.log.log import Log

NO_QUERY = "none"
"""What `takeOverFrom` says for commits that no query made."""
RECENT_S = 2 * 3600.0
"""A rival that neither opened nor committed for so long is taken for dead: above the interval of an hourly trigger."""
_READ_TIMEOUT_S = 10.0
_MOST_TAKEOVERS = 64
_QUERY, _BATCH, _SHIFT, _RUN, _DIGEST = "queryId", "batchId", "checkpointShift", "runId", "digest"
_REPEATED = (
    "The repetition was not committed. If the query's rows differ each time, as sums of fractions behind a shuffle may"
    " in the last bit, set allowChangedReplay=true: what was committed stands. New rows want a new checkpointId, or a"
    " new query_id for a new checkpoint location. A checkpoint location that was restored from a copy goes on with a"
    " new writerId and takeOverFrom=none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Commit as `checkpoint_id` with `metadata`, or skip because the ledger has the batch already."""

    checkpoint_id: int
    metadata: Metadata = field(default_factory=dict[str, str])
    is_replay: bool = False


def decide_batch(last: LastCommit | None, options: WriteOptions, query_id: str, batch_id: int) -> BatchDecision:
    """Decide about a micro-batch. Its checkpoint is `batch_id + 1`, shifted if the query took the writer over. Raise
    CheckpointMismatch for any batch but the last one and the next one, and for another query's writer; Misuse for one
    that this run of the query has written already.
    """
    run_id = options.run_id
    if last is None:
        _check_next(0, NO_QUERY, options, query_id, batch_id)
        return _committed_as(query_id, batch_id, 0, run_id)
    if _owner_of(last) != query_id:
        _check_take_over(last, options, query_id)
        return _committed_as(query_id, batch_id, last.checkpoint.id - batch_id, run_id)
    shift = int(last.metadata.get(_SHIFT, 0))
    _check_next(last.checkpoint.id - shift, query_id, options, query_id, batch_id)
    decision = _committed_as(query_id, batch_id, shift, run_id)
    if decision.checkpoint_id < last.checkpoint.id:
        raise CheckpointMismatch(
            f"batch {batch_id} is older than the writer's last one",
            writer=options.writer,
            query_id=query_id,
            last_batch=last.checkpoint.id - 1 - shift,
            hint="The checkpoint location is older than the log: restore it, or start a query with another writerId",
        )
    if decision.checkpoint_id == last.checkpoint.id:
        if run_id and last.metadata.get(_RUN) == run_id:
            raise Misuse(
                f"batch {batch_id} was already written by this run of the query: this is another write of it",
                writer=options.writer,
                query_id=query_id,
                hint="Write a batch in one call, with puts and deletes by the column op; or give each write a writer of"
                " its own, with partitions of its own. This batch counts as written: add what is missing by hand, and"
                " go on with allowChangedReplay=true for one run",
            )
        return BatchDecision(checkpoint_id=last.checkpoint.id, is_replay=True)
    return decision


def decide_write(last: LastCommit | None, options: WriteOptions) -> BatchDecision:
    """Decide about a plain batch write. Without a checkpoint id it is the next one, whatever that is. Raise
    CheckpointMismatch for an id below the last one, and for a query's writer.
    """
    checkpoint_id, last_id = options.checkpoint_id, last.checkpoint.id if last is not None else 0
    if last is not None and _owner_of(last) != NO_QUERY:
        _check_take_over(last, options, NO_QUERY)
    elif checkpoint_id == last_id:
        return BatchDecision(checkpoint_id=last_id, is_replay=True)
    if checkpoint_id is not None and checkpoint_id <= last_id:
        raise CheckpointMismatch(
            f"checkpoint {checkpoint_id} is not later than the writer's last one",
            writer=options.writer,
            last_checkpoint=last_id,
            hint="Checkpoint ids of a writer must grow; only the last one may be written again, and is skipped",
        )
    return BatchDecision(checkpoint_id=last_id + 1 if checkpoint_id is None else checkpoint_id)


def _check_next(due: int, owner: str, options: WriteOptions, query_id: str, batch_id: int) -> None:
    """Raise CheckpointMismatch for a batch behind the one that is `due`, unless an option allows for the gap."""
    if batch_id <= due or options.allow_gaps or options.take_over_from == owner:
        return
    raise CheckpointMismatch(
        f"batch {batch_id} of the query came, and this log lacks its batches {due} to {batch_id - 1}",
        writer=options.writer,
        query_id=query_id,
        hint="They may be in another log, or were in one that was deleted or restored: write to that one, or start with"
        " a new checkpoint location. If nothing is missing, as the sink or its writerId is new in the query,"
        f" set takeOverFrom={owner} for one run; if its foreachBatch leaves batches out, set allowGaps=true",
    )


def told_of(digests: Sequence[StateDigest | None], value_schema: ValueSchema) -> Metadata:
    """Return what a commit says of the rows of its tasks, for `check_replay`; nothing if a task says nothing."""
    known = [digest for digest in digests if digest is not None]
    return {_DIGEST: sum(known, StateDigest()).to_text(value_schema)} if len(known) == len(digests) else {}


def check_replay(
    last: LastCommit,
    options: WriteOptions,
    told: Metadata,
    handles: Sequence[Handle],
    read: Callable[[], Sequence[Handle] | None],
) -> None:
    """Raise CheckpointMismatch if a repetition of the writer's last commit has other rows than that.

    `told` and `handles` are those of the repetition. `read` reads the handles that were committed, for a commit whose
    digest does not compare, as those of earlier versions have none; it gives None if that commit is truncated.
    """
    one, other = (str(found.get(_DIGEST, "")).split(".") for found in (last.metadata, told))
    if len(one) > 1 and one[:2] == other[:2]:
        is_same, rows = one == other, int(one[2])
    else:
        committed = read()
        is_same = committed is None or _spread(committed) == _spread(handles)
        rows = sum(handle.changes for handle in committed or ())
    if is_same or options.allow_changed_replay:
        return
    raise CheckpointMismatch(
        "this is a repetition of the writer's last commit, but its rows are not those that were committed",
        writer=options.writer,
        checkpoint=last.checkpoint.id,
        rows=sum(handle.changes for handle in handles),
        committed_rows=rows,
        hint=_REPEATED,
    )


def committed_handles(log: Log, last: LastCommit) -> Sequence[Handle] | None:
    """Read the handles of a commit from the ledger; return None if it is truncated."""
    found = _find(log, OffsetRange(last.offset, last.offset + 1), lambda _: True)
    commit = decode(found.value) if found is not None else None
    return commit.read_body().handles if isinstance(commit, Commit) else None


def _spread(handles: Sequence[Handle]) -> Mapping[int, tuple[int, bytes]]:
    """By partition, how many changes and which key groups."""
    spread: dict[int, tuple[int, bytes]] = {}
    for entry in (entry for handle in handles for entry in handle.entries):
        changes, key_groups = spread.get(entry.partition, (0, b""))
        spread[entry.partition] = changes + entry.changes, merge_bitmaps(key_groups, entry.key_groups)
    return spread


def _committed_as(query_id: str, batch_id: int, shift: int, run_id: str | None) -> BatchDecision:
    metadata: dict[str, str | int] = {_QUERY: query_id, _BATCH: batch_id}
    if run_id:
        metadata[_RUN] = run_id
    if shift:
        metadata[_SHIFT] = shift
    return BatchDecision(checkpoint_id=batch_id + 1 + shift, metadata=metadata)


def _owner_of(last: LastCommit) -> str:
    """The query whose commit this is, or NO_QUERY."""
    return str(last.metadata.get(_QUERY, NO_QUERY))


def _check_take_over(last: LastCommit, options: WriteOptions, query_id: str) -> None:
    """Raise CheckpointMismatch unless takeOverFrom names the owner of the writer's last commit."""
    owner = _owner_of(last)
    if options.take_over_from != owner:
        raise CheckpointMismatch(
            "the writer's last commit belongs to another query",
            writer=options.writer,
            query_id=query_id,
            last_query_id=owner,
            last_checkpoint=last.checkpoint.id,
            hint=f"Give this query its own writerId, or take over with the option takeOverFrom={owner}",
        )


# ---- whom an Open may fence


class Rival(NamedTuple):
    """A live epoch that our Open would fence. `age_s` is the time since its last sign of life; None if that is gone.
    `has_committed`: under this epoch, and began nothing since. `last` is its writer's last commit, under any epoch.
    """

    live: LiveEpoch
    age_s: float | None
    has_committed: bool
    last: LastCommit | None


def check_ownership(
    options: WriteOptions, query_id: str | None, tag: bytes, last: LastCommit | None, rivals: Sequence[Rival]
) -> None:
    """Raise CheckpointMismatch if the writer is another query's, LogInUse if an Open would end a rival that may live.

    `query_id` is this query's if it is known before its tasks run, `tag` what its nonces begin with, `last` its
    writer's last commit.
    """
    ours = query_id if options.serves_query else NO_QUERY
    if last is not None and ours and _owner_of(last) != ours:
        _check_take_over(last, options, ours)
    if options.take_over:
        return
    for rival in rivals:
        if _may_live(rival) and not _is_ours(rival, options, ours, tag):
            raise LogInUse(
                "another Spark job writes to this log",
                writer=rival.live.writer,
                partitions=ranges_text(rival.live.partitions),
                query_id=_owner_of(rival.last) if rival.last is not None else None,
                last_seen_s=None if rival.age_s is None else round(rival.age_s),
                hint="A partition has one writing job at a time: give each job its own, by the option"
                " partitions; or stop that one and set takeOver=true",
            )


def _may_live(rival: Rival) -> bool:
    if rival.age_s is None or rival.age_s > RECENT_S:
        return False
    return rival.live.nonce.startswith(OF_QUERY if rival.has_committed else (OF_QUERY, OF_PLAIN))


def _is_ours(rival: Rival, options: WriteOptions, ours: str | None, tag: bytes) -> bool:
    """Whether the rival is an earlier life of ours, or one that takeOverFrom names."""
    if rival.live.writer != options.writer:
        return False
    if rival.last is None and options.serves_query and rival.live.nonce.startswith(OF_QUERY):
        return True  # A query that died in its first batch, and was corrected.
    owner = _owner_of(rival.last) if rival.last is not None else None
    if owner is not None and owner == options.take_over_from:
        return True
    if owner is not None and ours and rival.has_committed:
        return owner == ours
    return query_of(rival.live.nonce) == query_of(tag)


def find_rivals(log: Log, fold: LedgerFold, options: WriteOptions, now_s: float) -> list[Rival]:
    """The live epochs that an Open would fence: those on a partition that it takes, and the writer's own. Raises
    ConfigError if the options take no partition that the log has.
    """
    taken = frozenset(options.taken(log.descriptor.partitions))
    found: list[Rival] = []
    for epoch in fold.freeze().live:
        if epoch.writer != options.writer and taken.isdisjoint(epoch.partitions):
            continue
        last = fold.last_commit(epoch.writer)
        committed = last.offset if last is not None and last.offset > epoch.epoch else None
        begun = _begun(log, epoch.nonce, committed, fold.position) if committed is not None else epoch.epoch
        age_s = None if options.take_over else _age_s(log, max(begun or 0, committed or 0), now_s)
        found.append(Rival(epoch, age_s, has_committed=begun is None, last=last))
    return found


def has_begun(log: Log, fold: LedgerFold, writer: str, tag: bytes) -> bool:
    """Whether the ledger shows that the run with this tag opened the writer: by its last commit, or by an Open, if it
    is not truncated. Those who took over name, one after the other, the Open that they replaced.
    """
    if same_run(fold.last_checkpoint(writer).nonce, tag):
        return True
    epoch = fold.prior(writer, ())
    for _ in range(_MOST_TAKEOVERS):
        found = _find(log, OffsetRange(epoch, epoch + 1), lambda _: True) if epoch >= 0 else None
        record = decode(found.value) if found is not None else None
        if not isinstance(record, Open):
            return False
        if same_run(record.nonce, tag):
            return True
        epoch = record.prior
    return False


def under_way(nonce: bytes) -> bytes:
    """The void record that says that another plain write of the epoch with this nonce is under way."""
    return VOID_VALUE + b"plan" + nonce


def _begun(log: Log, nonce: bytes, committed: int, end: int) -> int | None:
    """Where the ledger says that a plain write was begun since the epoch's last commit; None if it was not."""
    if not nonce.startswith(OF_PLAIN) or committed + 1 >= end:
        return None
    found = _find(log, OffsetRange(committed + 1, end), lambda record: record.value == under_way(nonce))
    return None if found is None else found.offset


def _age_s(log: Log, offset: int, now_s: float) -> float | None:
    """How long ago the ledger's record at `offset` was written; None if it is truncated. Where the brokers do not stamp
    records the age is unknown, and it counts as written now.
    """
    found = _find(log, OffsetRange(offset, offset + 1), lambda _: True)
    if found is None:
        return None
    return now_s - found.timestamp_ms / 1000 if found.timestamp_ms >= 0 else 0.0


def _find(log: Log, offsets: OffsetRange, is_wanted: Callable[[Record], bool]) -> Record | None:
    """The first record of the ledger that is wanted; None if there is none, or it is truncated."""
    with closing(log.kafka.reader(log.ledger_topic)) as reader, suppress(OffsetGone):
        return next(filter(is_wanted, reader.read({0: offsets}, stall_timeout_s=_READ_TIMEOUT_S)), None)
    return None
