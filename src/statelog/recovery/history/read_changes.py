"""`read_changes`: the changes of a plan, or of a part of one, as Arrow batches. Run by each task.

It goes the one replay path and asks for nothing but the data topic (and value schemas, once): no manifest, no ledger,
no lease. Memory: a batch, and what the Kafka client reads ahead.
"""

import time
from collections.abc import Generator
from contextlib import closing

import pyarrow as pa

from statelog.environment import Environment
from statelog.errors import IdentityChanged
from statelog.reading.converter import Converter
from statelog.reading.plan import Plan
from statelog.recovery.history.change_batches import ChangeBatches
from statelog.recovery.reading.sources import ReadCount, committed_chunks
from statelog.recovery.settings import RecoverySettings
from statelog.storage.log.log import Log
from statelog.storage.replay import CommittedChunk

__all__ = ["check_identity", "planned_chunks", "read_changes"]


def read_changes(
    log: Log, plan: Plan, *, settings: RecoverySettings | None = None, environment: Environment | None = None
) -> Generator[pa.RecordBatch]:
    """Yield the changes: key, op (0 put, 1 delete), value (null in a delete), key_group, writer, checkpoint, position,
    timestamp, as `history_schema` says; at most 65,536 rows or about 8 MiB at once, but for one larger chunk.

    Within a key group they come in commit order, and in the order of their appends. Rows count once the generator has
    ended: only then is it known that nothing of what was committed is missing. A reader that cannot take rows back
    keeps them until then; a Spark task is such a reader, and does.

    Raises IncompleteChangeSet and others of Damaged, OffsetGone if the log was truncated past the plan, IdentityChanged
    if it is another log's, IncompatibleSchema if the plan's value schema is older than some value, Unavailable.
    """
    chosen = settings or RecoverySettings()
    check_identity(log, plan)
    if plan.is_empty:
        return
    converter = Converter(log, plan.value_schema_id, drops_fields=False)
    batches = ChangeBatches(plan.commits, converter.schema)
    with closing(planned_chunks(log, plan, converter, chosen, environment or Environment())) as chunks:
        for chunk in chunks:
            yield from batches.add(chunk.changes, plan.commit_at(chunk.partition, chunk.offset))
    yield from batches.finish()


def check_identity(log: Log, plan: Plan) -> None:
    """Raise IdentityChanged if the plan is another log's."""
    if plan.identity != log.descriptor.identity:
        raise IdentityChanged(
            "the plan was made for another log, or for topics that this one had before",
            log=log.name,
            expected=log.descriptor.identity.ledger_topic_id,
            found=plan.identity.ledger_topic_id,
            hint="Plan again",
        )


def planned_chunks(
    log: Log, plan: Plan, converter: Converter, settings: RecoverySettings, environment: Environment
) -> Generator[CommittedChunk]:
    """The chunks of a plan in the converter's value schema, in offset order within a partition. Close the generator."""
    return committed_chunks(
        log, plan.replay, plan.key_groups, converter, ReadCount(), settings, pause=_pause, clock=environment.clock
    )


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False
