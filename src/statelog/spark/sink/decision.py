"""What a batch is to the log: new, a replay of the last one, or not to be committed. Pure.

A writer's history belongs to one query (its id is in the metadata of every commit). Spark replays a batch, with the
same id, when it died between the ledger's commit and its own commit log; that is the only replay there is, and it comes
in another run of the query. What comes in the same run is another write, and dropping it would lose its rows.

Invariants:
- A batch is skipped only if its query and its id are those of the writer's last commit, and its run is not, as far as
  runs are known.
- A lower id, or another query, is a refusal that names the way out. Nothing is guessed.
"""

from dataclasses import dataclass, field

from statelog.errors import CheckpointMismatch, Misuse
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LastCommit

__all__ = ["NO_QUERY", "BatchDecision", "check_take_over", "decide_batch", "decide_write", "owner_of"]

NO_QUERY = "none"
"""What `takeOverFrom` says for commits that no query made."""

_QUERY, _BATCH, _SHIFT, _RUN = "queryId", "batchId", "checkpointShift", "runId"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Commit as `checkpoint_id` with `metadata`, or skip because the ledger has the batch already."""

    checkpoint_id: int
    metadata: Metadata = field(default_factory=dict[str, str])
    is_replay: bool = False


def decide_batch(
    last: LastCommit | None,
    *,
    writer: str,
    query_id: str,
    batch_id: int,
    take_over_from: str | None,
    run_id: str | None = None,
) -> BatchDecision:
    """What to do with a micro-batch. Its checkpoint is `batch_id + 1`, shifted if the query took the writer over.

    Raises CheckpointMismatch for a batch older than the last one, and for another query's writer; Misuse for one that
    this run of the query has written already.
    """
    if last is None:
        return _commit(query_id, batch_id, 0, run_id)
    if owner_of(last) != query_id:
        check_take_over(last, writer, query_id, take_over_from)
        return _commit(query_id, batch_id, last.checkpoint.id - batch_id, run_id)
    shift = int(last.metadata.get(_SHIFT, 0))
    decision = _commit(query_id, batch_id, shift, run_id)
    if decision.checkpoint_id < last.checkpoint.id:
        raise CheckpointMismatch(
            f"batch {batch_id} is older than the writer's last one",
            writer=writer,
            query_id=query_id,
            last_batch=last.checkpoint.id - 1 - shift,
            hint="The checkpoint location is older than the log: restore it, or start a query with another writerId",
        )
    if decision.checkpoint_id == last.checkpoint.id:
        if run_id and last.metadata.get(_RUN) == run_id:
            raise Misuse(
                f"batch {batch_id} was already written by this run of the query: this is another write of it",
                writer=writer,
                query_id=query_id,
                hint="Write a batch in one call, with puts and deletes by the column op; or give each write a writer of"
                " its own, with partitions of its own. This batch counts as written: add what is missing by hand",
            )
        return BatchDecision(checkpoint_id=last.checkpoint.id, is_replay=True)
    return decision


def decide_write(
    last: LastCommit | None, *, writer: str, checkpoint_id: int | None, take_over_from: str | None
) -> BatchDecision:
    """What to do with a plain batch write. Without a checkpoint id it is the next one, whatever that is.

    Raises CheckpointMismatch for an id below the last one, and for a query's writer.
    """
    last_id = last.checkpoint.id if last is not None else 0
    if last is not None and owner_of(last) != NO_QUERY:
        check_take_over(last, writer, NO_QUERY, take_over_from)
    elif checkpoint_id is not None and checkpoint_id == last_id:
        return BatchDecision(checkpoint_id=last_id, is_replay=True)
    if checkpoint_id is not None and checkpoint_id <= last_id:
        raise CheckpointMismatch(
            f"checkpoint {checkpoint_id} is not later than the writer's last one",
            writer=writer,
            last_checkpoint=last_id,
            hint="Checkpoint ids of a writer must grow; only the last one may be written again, and is skipped",
        )
    return BatchDecision(checkpoint_id=last_id + 1 if checkpoint_id is None else checkpoint_id)


def _commit(query_id: str, batch_id: int, shift: int, run_id: str | None) -> BatchDecision:
    metadata: dict[str, str | int] = {_QUERY: query_id, _BATCH: batch_id}
    if run_id:
        metadata[_RUN] = run_id
    if shift:
        metadata[_SHIFT] = shift
    return BatchDecision(checkpoint_id=batch_id + 1 + shift, metadata=metadata)


def owner_of(last: LastCommit) -> str:
    """The query whose commit this is, or NO_QUERY."""
    return str(last.metadata.get(_QUERY, NO_QUERY))


def check_take_over(last: LastCommit, writer: str, query_id: str, take_over_from: str | None) -> None:
    """Raise CheckpointMismatch unless `take_over_from` names the owner of the writer's last commit."""
    owner = owner_of(last)
    if take_over_from != owner:
        raise CheckpointMismatch(
            "the writer's last commit belongs to another query",
            writer=writer,
            query_id=query_id,
            last_query_id=owner,
            last_checkpoint=last.checkpoint.id,
            hint=f"Give this query its own writerId, or take over with the option takeOverFrom={owner}",
        )
