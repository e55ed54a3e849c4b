"""`difference`: the keys whose committed value is another one at a later position of a log, with both values.

The keys come from the commits between the two, their earlier values from a recovery of those keys' groups alone. A key
that was written and is as it was is no difference. Holds the changed keys in memory, and the earlier state of their key
groups.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statelog.operate.lookup import look_up
from statelog.reading.plan import At, AtPosition
from statelog.recovery import RecoverySettings, plan_changes
from statelog.recovery.changes import newest_changes
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.log.log import Log

_ROW = ("key_group", "key")


@dataclass(frozen=True, slots=True)
class Difference:
    """The tables of `key_group`, `key` and `value` of the keys that differ, in one order: as they were, and as they
    are. A key that was not there, or is not there any more, has null.
    """

    start_position: int
    end_position: int
    before: pa.Table
    after: pa.Table


def difference(log: Log, start: At, end: At | None, settings: RecoverySettings) -> Difference:
    """From the state `start` to the state `end`, None for the newest. Raises NotFound if the log does not hold what was
    committed in between, Misuse if it ends before it begins, Damaged, Unavailable.
    """
    plan = plan_changes(log, start, end)
    schema = log.value_schemas.get(plan.value_schema_id or 0)
    same, at = replace(settings, value_schema_id=schema.id), AtPosition(plan.start_position or 0)
    with closing(newest_changes(log, plan, settings=same)) as tables:
        found = list(tables)
    changed = pa.concat_tables(found) if found else log.change_schema(schema.id).empty_table()
    groups = sorted(set(changed.column("key_group").to_pylist()))
    keys = pa.concat_arrays(changed.column("key").chunks) if groups else None
    earlier = changed.slice(0, 0) if keys is None else look_up(log, keys, groups, at=at, settings=same).rows
    old, new = _texts(earlier, schema), _texts(changed.filter(pc.not_equal(changed.column("op"), DELETE)), schema)
    numbers = {row: number for number, row in enumerate(_rows(earlier))}
    differing = [(place, row) for place, row in enumerate(_rows(changed)) if old.get(row) != new.get(row)]
    after = changed.take(pa.array([place for place, _ in differing], pa.int64())).select([*_ROW, "value"])
    values = earlier.column("value").take(pa.array([numbers.get(row) for _, row in differing], pa.int64()))
    return Difference(at.position, plan.position, after.set_column(2, "value", values), after)


def _texts(table: pa.Table, schema: ValueSchema) -> dict[tuple[int, Any], bytes]:
    """What tells values apart, by key group and key: the value's bytes. Every row has one."""
    texts = [text for chunk in table.column("value").chunks for text in avro_values(chunk, schema).to_pylist()]
    return dict(zip(_rows(table), texts, strict=True))


def _rows(table: pa.Table) -> Iterator[tuple[int, Any]]:
    return zip(*(table.column(name).to_pylist() for name in _ROW), strict=True)
