"""Ownership: which query owns a writer, whether a batch is new, and which writers an Open may fence.

A writer's history belongs to one query: its id is in the metadata of every commit. Spark replays a batch, with the same
id, when it died between the ledger's commit and its own commit log. That is the only replay, and it comes in another
run of the query. A batch with the same id in the same run is another write, and skipping it would lose its rows.

An Open fences every competing writer, so these are checked first. Only a query that has committed, and that opened or
committed recently, prevents an Open: it may be alive. A write that has committed nothing is repeated whole. Epochs that
no query opened are not checked: the last to open owns the log.

Invariants:
- A batch is skipped only if query, id and rows are those of the writer's last commit, and its run, if known, is not.
- Other rows, another query, and any batch but the next one are refused with a hint. Nothing is guessed.
- The same query, started again, takes over at once, also from another session.
- Another query, or a plain write next to a query, fences nothing without the option takeOver or takeOverFrom.
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
"""The value of `takeOverFrom` for commits that no query made."""
RECENT_S = 2 * 3600.0
"""A query that neither opened nor committed for so long counts as dead: longer than an hourly trigger."""
_MOST_TAKEOVERS = 64
_QUERY, _BATCH, _SHIFT, _RUN, _DIGEST = "queryId", "batchId", "checkpointShift", "runId", "digest"
_REPEATED = (
    "If the query's rows differ each time, as sums of fractions after a shuffle may in the last bit, set"
    " allowChangedReplay=true: the committed rows stay. Give new rows a new checkpointId, or a new query_id for a new"
    " checkpoint location. Give a checkpoint location that was restored from a copy a new writerId and"
    " takeOverFrom=none. The repetition was not committed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Whether to commit as `checkpoint_id` with `metadata`, or to skip a batch that the ledger has already."""

    checkpoint_id: int
    metadata: Metadata = field(default_factory=dict[str, str])
    is_replay: bool = False


def decide_batch(last: LastCommit | None, options: WriteOptions, query_id: str, batch_id: int) -> BatchDecision:
    """Decide about a micro-batch. Its checkpoint is `batch_id + 1`, shifted if the query took the writer over.

    Raises CheckpointMismatch for any batch but the last one and the next one, and for another query's writer. Raises
    Misuse for a batch that this run of the query has written already.
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
                " continue with allowChangedReplay=true for one run",
            )
        return BatchDecision(checkpoint_id=last.checkpoint.id, is_replay=True)
    return decision


def decide_write(last: LastCommit | None, options: WriteOptions) -> BatchDecision:
    """Decide about a plain batch write. Without a checkpoint id it gets the next one.

    Raises CheckpointMismatch for an id below the last one, and for a query's writer.
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
            hint="Give a greater id than the last one. Only the last one may be repeated, and is skipped",
        )
    return BatchDecision(checkpoint_id=last_id + 1 if checkpoint_id is None else checkpoint_id)


def _check_next(due: int, owner: str, options: WriteOptions, query_id: str, batch_id: int) -> None:
    """Raise CheckpointMismatch for a batch after the one that is `due`, unless an option allows the gap."""
    if batch_id <= due or options.allow_gaps or options.take_over_from == owner:
        return
    raise CheckpointMismatch(
        f"batch {batch_id} of the query came, and this log lacks its batches {due} to {batch_id - 1}",
        writer=options.writer,
        query_id=query_id,
        hint="Write to the log that has them, or start with a new checkpoint location, if that log was deleted or"
        " restored. If nothing is missing, because the sink or its writerId is new in the query, set"
        f" takeOverFrom={owner} for one run. If its foreachBatch skips batches, set allowGaps=true",
    )


def digest_metadata(digests: Sequence[StateDigest | None], value_schema: ValueSchema) -> Metadata:
    """Return the metadata with the digest of all tasks' rows, for `check_replay`; empty if a task has no digest."""
    known = [digest for digest in digests if digest is not None]
    return {_DIGEST: sum(known, StateDigest()).to_text(value_schema)} if len(known) == len(digests) else {}


def check_replay(
    last: LastCommit,
    options: WriteOptions,
    digest: Metadata,
    handles: Sequence[Handle],
    read: Callable[[], Sequence[Handle] | None],
) -> None:
    """Raise CheckpointMismatch if a repetition of the writer's last commit has other rows than that.

    digest, handles  those of the repetition
    read             reads the committed handles, for a commit whose digest is not comparable, such as that of an
                     earlier version; returns None if the commit is truncated
    """
    one, other = (str(found.get(_DIGEST, "")).split(".") for found in (last.metadata, digest))
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
    """Return the number of changes and the bitmap of key groups, by partition."""
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
    """Return the query that made a commit, or NO_QUERY."""
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


# ---- the writers that an Open may fence


def are_in_order(last: LastCommit | None, options: WriteOptions, query_id: str) -> bool:
    """Return whether numbers order the last commit and this write: both are of one query, or of none."""
    ours = query_id if options.serves_query else NO_QUERY
    return options.is_numbered and last is not None and _owner_of(last) == ours


def planned_earlier(options: WriteOptions) -> Fenced:
    """Return the error for a write whose rows may be older than the committed ones."""
    return Fenced(
        "another write of this writer was planned later, and is committed",
        writer=options.writer,
        hint="Run this one again if its rows are to be the newest",
    )


def is_of_run(last: LastCommit | None, run_id: str | None) -> bool:
    """Return whether this run of a query made the commit."""
    return last is not None and run_id is not None and last.metadata.get(_RUN) == run_id


def has_opened(log: Log, epoch: int, tag: bytes) -> bool:
    """Return whether a run, whose nonces begin with the tag, sent the Open at `epoch` or one that it replaced.

    Each Open names the one that it replaced. Truncated ones are not checked.
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


def check_competitors(log: Log, fold: LedgerFold, options: WriteOptions, now_s: float) -> None:
    """Raise LogInUse if an Open would fence another writer's query that may be alive.

    That is a query that has committed, and opened or committed recently. Raises ConfigError if the options take no
    partition of the log.
    """
    taken = frozenset(options.taken(log.descriptor.partitions))
    own = fold.live_epoch(fold.newest_epoch(options.writer))
    if options.take_over or (own is not None and taken <= own.partitions):
        return  # A live epoch shares its partitions with no other one.
    for one in fold.freeze().live:
        last = fold.last_commit(one.writer)
        is_other = one.writer != options.writer and not taken.isdisjoint(one.partitions)
        if not is_other or last is None or _owner_of(last) == NO_QUERY:
            continue
        age_s = _age_s(log, max(one.epoch, last.offset), now_s)
        if age_s is not None and age_s <= RECENT_S:
            raise LogInUse(
                "another Spark job writes to this log",
                writer=one.writer,
                partitions=ranges_text(one.partitions),
                query_id=_owner_of(last),
                last_seen_s=round(age_s),
                hint="Give each job partitions of its own, by the option partitions; or stop the other job and set"
                " takeOver=true. A partition has one writing job at a time",
            )


def _age_s(log: Log, offset: int, now_s: float) -> float | None:
    """Return how long ago the ledger's record at `offset` was written; None if it is truncated.

    Without the brokers' timestamp, the record counts as written now.
    """
    found = _record_at(log, offset)
    if found is None:
        return None
    return now_s - found.timestamp_ms / 1000 if found.timestamp_ms >= 0 else 0.0


def _record_at(log: Log, offset: int) -> Record | None:
    """Return the ledger's record at an offset; None if it is truncated."""
    with suppress(OffsetGone):
        return records_at(log.kafka, log.ledger_topic, {0: offset}).get(0)
    return None
