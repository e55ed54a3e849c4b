"""`newest_changes`: the newest change of each key among those of a plan: what brings a copy of the state up to date.

The changes are read whole, and verified, before the first one comes out, in bounded memory; a lease holds them as long
as they are read, and no longer.
"""

from collections.abc import Generator
from contextlib import closing
from itertools import count

import pyarrow as pa

from statelog.environment import Environment
from statelog.reading.converter import Converter
from statelog.reading.hold import Hold, Terms
from statelog.reading.plan import Plan
from statelog.recovery.history.read_changes import check_identity, planned_chunks
from statelog.recovery.reading.spilled_tail import SpilledTail
from statelog.recovery.settings import RecoverySettings, disk_queue
from statelog.storage.log.log import Log
from statelog.storage.runs.merge import merge_streams

__all__ = ["newest_changes"]

_FRAME_BYTES = 256 * 1024


def newest_changes(
    log: Log, plan: Plan, *, settings: RecoverySettings | None = None, environment: Environment | None = None
) -> Generator[pa.Table]:
    """Yield tables of key_group, op, key, value, sorted by (key group, key), one row for each key; deletes too.

        plan = plan_changes(log, AtPosition(0))
        for table in newest_changes(log, plan):
            print(table.num_rows)

    Memory is about three times `fold_bytes`; what does not fit is spilled. Close the generator to release the disk.
    Values of a newer schema than the plan's are read in that one, where it can. Raises OffsetGone if the log was
    truncated past the plan, StorageFull, and as `read_changes`.
    """
    chosen, machine = settings or RecoverySettings(), environment or Environment()
    check_identity(log, plan)
    numbers = count()
    tail = SpilledTail(
        fold_bytes=chosen.fold_bytes,
        frame_bytes=_FRAME_BYTES,
        open_queue=lambda: disk_queue(chosen, machine.open_spill_file, number=next(numbers)),
    )
    with closing(tail):
        _fill(tail, log, plan, chosen, machine)
        yield from merge_streams(tail.streams(), drop_deletes=False)


def _fill(tail: SpilledTail, log: Log, plan: Plan, settings: RecoverySettings, environment: Environment) -> None:
    converter = Converter(log, plan.value_schema_id)
    terms = Terms(settings.holder, settings.lease_ttl_s)
    with (
        Hold.on(log, plan, terms, environment=environment) as hold,
        closing(planned_chunks(log, plan, converter, settings, environment)) as chunks,
    ):
        for chunk in chunks:
            tail.add(chunk.partition, chunk.changes)
            hold.renew()
