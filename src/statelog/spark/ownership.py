"""Ownership: whose a writer and a log are, as the ledger says; what a batch is to the log, and whom an Open may fence.

A writer's history belongs to one query: its id is in the metadata of every commit. Spark replays a batch, with the same
id, when it died between the ledger's commit and its own commit log. That is the only replay there is, and it comes in
another run of the query: what comes in the same run is another write, and dropping it would lose its rows.

An Open ends every rival, so they are looked at first. A query that has committed blocks the way for as long as it may
be alive: it opened or committed not long ago. Nothing else does: a write that has committed nothing is repeated whole.
Epochs that no query opened are not judged here: the last to open owns the log.

Invariants:
- A batch is skipped only if its query and its id are those of the writer's last commit, its run is not, as far as runs
  are known, and its rows are those that were committed. Other rows, another query, and any batch but the next one are
  refusals that name the way out. Nothing is guessed.
- The same query, started again, takes over at once, from another session too.
- Another query, and a plain write beside a query, fence nothing without the option takeOver or takeOverFrom.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from statelog.errors import CheckpointMismatch, Fenced, LogInUse, Misuse, OffsetGone
from statelog.history import records_at
from statelog.kafka.port import Record
from statelog.log import Log
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import merge_bitmaps, ranges_text
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.records import Commit, Open, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.options import WriteOptions

NO_QUERY = "none"
"""What `takeOverFrom` says for commits that no query made."""
RECENT_S = 2 * 3600.0
"""A query that neither opened nor committed for so long is taken for dead: above the interval of an hourly trigger."""
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
        if is_of_run(last, run_id):
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
    found = _record_at(log, last.offset)
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


def are_in_order(last: LastCommit | None, options: WriteOptions, query_id: str) -> bool:
    """Whether numbers tell which is older, the commit or what is to be committed: both are of one query, or of none."""
    ours = query_id if options.serves_query else NO_QUERY
    return options.is_numbered and last is not None and _owner_of(last) == ours


def planned_earlier(options: WriteOptions) -> Fenced:
    """The error for a write whose rows are older than what is committed, as far as anybody knows."""
    return Fenced(
        "another write of this writer was planned later, and is committed",
        writer=options.writer,
        hint="Run this one again if its rows are to be the newest",
    )


def is_of_run(last: LastCommit | None, run_id: str | None) -> bool:
    """Whether this run of a query made the commit."""
    return last is not None and run_id is not None and last.metadata.get(_RUN) == run_id


def has_opened(log: Log, epoch: int, tag: bytes) -> bool:
    """Whether a run, whose nonces begin with the tag, sent the Open at `epoch` or one before it: each names the one
    that it replaced. Those that are truncated are not looked at.
    """
    for _ in range(_MOST_TAKEOVERS):
        found = _record_at(log, epoch) if epoch >= 0 else None
        record = decode(found.value) if found is not None else None
        if not isinstance(record, Open):
            return False
        if record.nonce.startswith(tag):
            return True
        epoch = record.prior
    return False


def check_rivals(log: Log, fold: LedgerFold, options: WriteOptions, now_s: float) -> None:
    """Raise LogInUse if an Open would end another writer's query that may live: one that has ever committed, and
    opened or committed not long ago. Raise ConfigError if the options take no partition that the log has.
    """
    taken = frozenset(options.taken(log.descriptor.partitions))
    own = fold.live_epoch(fold.newest_epoch(options.writer))
    if options.take_over or (own is not None and taken <= own.partitions):
        return  # An epoch that lives shares its partitions with no other one.
    for rival in fold.freeze().live:
        last = fold.last_commit(rival.writer)
        is_other = rival.writer != options.writer and not taken.isdisjoint(rival.partitions)
        if not is_other or last is None or _owner_of(last) == NO_QUERY:
            continue
        age_s = _age_s(log, max(rival.epoch, last.offset), now_s)
        if age_s is not None and age_s <= RECENT_S:
            raise LogInUse(
                "another Spark job writes to this log",
                writer=rival.writer,
                partitions=ranges_text(rival.partitions),
                query_id=_owner_of(last),
                last_seen_s=round(age_s),
                hint="A partition has one writing job at a time: give each job its own, by the option"
                " partitions; or stop that one and set takeOver=true",
            )


def _age_s(log: Log, offset: int, now_s: float) -> float | None:
    """How long ago the ledger's record at `offset` was written; None if it is truncated. Where the brokers do not stamp
    records the age is unknown, and it counts as written now.
    """
    found = _record_at(log, offset)
    if found is None:
        return None
    return now_s - found.timestamp_ms / 1000 if found.timestamp_ms >= 0 else 0.0


def _record_at(log: Log, offset: int) -> Record | None:
    """The ledger's record at an offset; None if it is truncated."""
    with suppress(OffsetGone):
        return records_at(log.kafka, log.ledger_topic, {0: offset}).get(0)
    return None
