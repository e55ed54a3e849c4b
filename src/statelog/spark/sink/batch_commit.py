"""The commit process: commits the handles of a batch, unless the ledger has the batch already.

Runs in a Python worker beside the driver, which serves many batches. It acts under the grant that comes with the
tasks' messages and opens nothing, except to settle a commit whose outcome is unknown.

Invariants:
- A commit continues the base that its tasks were planned with. If the cached committer is elsewhere, another
  process committed in between, and the ledger is read on before anything is decided.
- After an error the committer is dropped: the next commit starts from the ledger.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql.datasource import WriterCommitMessage

from statelog.environment import current_environment
from statelog.errors import ConfigError, Misuse
from statelog.producer.coordinator import Coordinator
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.state import LastCommit
from statelog.spark.clients import ProcessCache, cached_log
from statelog.spark.options.address import LogAddress
from statelog.spark.options.write import WriteOptions
from statelog.spark.sink.decision import BatchDecision, decide_batch, decide_write
from statelog.spark.sink.epochs import sibling_nonces
from statelog.spark.sink.task import TaskResult

__all__ = ["commit_batch", "commit_write"]

_LOG = logging.getLogger("statelog.spark")

BatchRule = Callable[[LastCommit | None], BatchDecision]

_coordinators: ProcessCache[tuple[LogAddress, bytes], Coordinator] = ProcessCache()


def commit_batch(
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int,
) -> bool:
    """Commit micro-batch `batch_id`; False if it was a replay. Raises CheckpointMismatch, OverlappingTasks, Misuse,
    Fenced, CommitRefused, OutcomeUnknown, Damaged, Unavailable, ConfigError.
    """
    results = _results(messages)
    query_id = _query_id(results)

    def decide(last: LastCommit | None) -> BatchDecision:
        return decide_batch(
            last,
            writer=options.writer,
            query_id=query_id,
            batch_id=batch_id,
            take_over_from=options.take_over_from,
            run_id=options.run_id,
        )

    return _commit(options, results, decide)


def commit_write(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Commit a plain batch write; False if it was a replay. Raises as `commit_batch`."""

    def decide(last: LastCommit | None) -> BatchDecision:
        return decide_write(
            last,
            writer=options.writer,
            checkpoint_id=options.checkpoint_id,
            take_over_from=options.take_over_from,
        )

    return _commit(options, _results(messages), decide)


def _commit(options: WriteOptions, results: Sequence[TaskResult], decide: BatchRule) -> bool:
    if not results:
        return True  # No task ran, so there are no changes, and a replay of nothing is nothing again.
    key = (options.where, results[0].grant.nonce)
    try:
        coordinator = _coordinator(options.where, results[0])
        decision = decide(coordinator.last_commit)
        if decision.is_replay:
            _LOG.info(
                "%s: writer %s has checkpoint %d already", options.where.log, options.writer, decision.checkpoint_id
            )
            return False
        handles = [_stamped(result, decision.checkpoint_id) for result in results]
        coordinator.commit(
            handles, decision.metadata, checkpoint_id=decision.checkpoint_id, unique_keys=options.unique_keys
        )
    except BaseException:
        _coordinators.drop(key)
        raise
    return True


def _coordinator(where: LogAddress, result: TaskResult) -> Coordinator:
    """The coordinator for the grant and base of these tasks."""
    key = (where, result.grant.nonce)
    found = _coordinators.get(key)
    # After the coordinator, so that no log is idle for longer than what was made of it.
    log = cached_log(where, result.grant.descriptor.identity)
    if found is not None:
        if found.base != result.base:
            found.refresh()  # Another commit process of the session was at work.
        return found
    siblings = replace(current_environment(), nonce=sibling_nonces(result.grant.nonce))
    made = siblings.run(Coordinator, log, result.grant.writer, grant=result.grant)
    return _coordinators.put(key, made)


def _stamped(result: TaskResult, checkpoint_id: int) -> Handle:
    """The task's handle as part of this checkpoint: tasks do not know the id, chunks do not carry it."""
    handle = Handle.from_bytes(result.handle)
    return replace(handle, steps=tuple(replace(step, checkpoint_id=checkpoint_id) for step in handle.steps))


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The tasks' results. Raises Misuse if one is missing, no result of ours, or of another batch: the commit would not
    be the batch.
    """
    results = [message for message in messages if isinstance(message, TaskResult)]
    batches = {(one.grant.nonce, one.base, one.query_id) for one in results}
    if len(results) != len(messages) or len(batches) > 1:
        raise Misuse(
            "the tasks of this batch did not all return a handle of it",
            tasks=len(messages),
            results=len(results),
            batches=len(batches),
            hint="Nothing was committed: run the batch again, and report this",
        )
    return results


def _query_id(results: Sequence[TaskResult]) -> str:
    if results and not results[0].query_id:
        raise ConfigError(
            "Spark does not tell the tasks which query they belong to",
            hint="Name it yourself, for good: option queryId, or query_id of upsert",
        )
    return results[0].query_id if results else ""
