"""Look up keys: their committed values, the history of one key by commit, and the difference of two states.

Keeps no state: a value comes from a recovery of the keys' groups alone, a history from the changes still in the log.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ConfigError
from statelog.log import Log
from statelog.operate.rows import rows_of
from statelog.reading import At, AtPosition
from statelog.recovery import RecoverySettings, plan_changes, read_changes, recover
from statelog.recovery.changes import newest_changes
from statelog.schemas.arrays import gathered
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import ValueSchema, with_text

_ROW = ("key_group", "key")


def groups_of(keys: pa.Array, named: int | None, descriptor: Descriptor) -> list[int]:
    """Return the key groups that the keys may be in.

    `named`: the key group that the caller gave, for a log whose callers choose key groups; None: all of them. Raises
    ConfigError for a named key group where it follows from the key.
    """
    if descriptor.hash_rule is HashRule.CALLER:
        return list(range(descriptor.key_groups)) if named is None else [named]
    if named is not None:
        raise ConfigError("the key group of this log's keys follows from the key", hint="Omit --key-group")
    return sorted(set(descriptor.key_groups_of(keys).tolist()))


class Lookup(NamedTuple):
    """The rows of the keys that exist at a ledger position, and the warnings of the recovery."""

    rows: pa.Table
    position: int
    warnings: tuple[str, ...]


def look_up(
    log: Log,
    keys: pa.Array,
    groups: Sequence[int],
    *,
    settings: RecoverySettings,
    at: At | None = None,
    at_least: int = 0,
    barrier: bool = False,
    due: bool = False,
) -> Lookup:
    """Return the committed rows of the keys by recovering these key groups alone, with `due` also their dues.

    If callers choose the key groups and all are asked for, they are read in portions: they may not fit into memory.
    Raises NotFound for a state that is no longer retained, Damaged, Unavailable, StorageFull.
    """
    with recover(log, key_groups=groups, at=at, at_least=at_least, barrier=barrier, settings=settings) as recovery:
        if log.descriptor.hash_rule is HashRule.CALLER and len(groups) > 1:
            position = recovery.position
            with recovery.stream(due=due) as stream:
                found = [rows_of(changes, keys) for changes, _ in stream]
            names = [*_ROW, "value", *[DUE.name] * due]
            rows = with_text(pa.concat_tables(found).select(names), recovery.value_schema)
        else:
            rows, position = rows_of(recovery.to_arrow(due=due), keys), recovery.position
        return Lookup(rows, position, tuple(recovery.warnings))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHistory:
    """The newest changes of one key in `history_schema`, oldest first, from `start_position` to `end_position`.

    The topics no longer hold anything below the start. `changes` counts all changes in the range; `rows` may be fewer.
    """

    rows: tuple[pa.RecordBatch, ...]
    changes: int
    start_position: int
    end_position: int


def history_of(log: Log, key: pa.Array, groups: Iterable[int], *, most: int, settings: RecoverySettings) -> KeyHistory:
    """Return the newest `most` changes of one key that the log still holds. Reads all changes of the key's group.

    Raises NotFound if the log was truncated past them meanwhile, Damaged, Unavailable, StorageFull.
    """
    plan = plan_changes(log, key_groups=groups)
    schema = log.value_schemas.get(plan.value_schema_id or 0)
    newest: deque[pa.RecordBatch] = deque()
    held = changes = 0
    with closing(read_changes(log, plan, settings=settings)) as batches:
        for batch in batches:
            found = with_text(batch.filter(pc.is_in(batch.column("key"), value_set=key)), schema)
            if not found.num_rows:
                continue  # The usual case: even empty batches would add up.
            changes, held = changes + found.num_rows, held + found.num_rows
            newest.append(found)
            while held - newest[0].num_rows >= most:
                held -= newest.popleft().num_rows
    rows = tuple(pa.Table.from_batches(newest).slice(max(0, held - most)).to_batches() if newest else ())
    start = plan.start_position or 0
    return KeyHistory(rows=rows, changes=changes, start_position=start, end_position=plan.position)


@dataclass(frozen=True, slots=True)
class Difference:
    """The keys that differ, as tables of `key_group`, `key` and `value` in one order; missing keys have null values."""

    start_position: int
    end_position: int
    before: pa.Table
    after: pa.Table


def difference(log: Log, start: At, end: At | None, settings: RecoverySettings) -> Difference:
    """Return the difference between the states `start` and `end`; `end` None: the newest state.

    Keys whose value did not change are left out. Holds the changed keys in memory, and the earlier state of their key
    groups. Raises NotFound if the log no longer holds the commits in between, Misuse if `end` lies before `start`,
    Damaged, Unavailable.
    """
    plan = plan_changes(log, start, end)
    schema = log.value_schemas.get(plan.value_schema_id or 0)
    same, at = replace(settings, value_schema_id=schema.id), AtPosition(plan.start_position or 0)
    with closing(newest_changes(log, plan, settings=same)) as tables:
        found = list(tables)
    changed = with_text(pa.concat_tables(found) if found else log.change_schema(schema.id).empty_table(), schema)
    groups = sorted(set(changed.column("key_group").to_pylist()))
    keys = pa.concat_arrays(changed.column("key").chunks) if groups else None
    earlier = changed.slice(0, 0) if keys is None else look_up(log, keys, groups, at=at, settings=same).rows
    old, new = _texts(earlier, schema), _texts(changed.filter(pc.not_equal(changed.column("op"), DELETE)), schema)
    numbers = {row: number for number, row in enumerate(_rows(earlier))}
    differing = [(place, row) for place, row in enumerate(_rows(changed)) if old.get(row) != new.get(row)]
    after = gathered(changed, np.array([place for place, _ in differing], np.int64)).select([*_ROW, "value"])
    known = earlier.select(["value"])
    known = pa.concat_tables([known, pa.table([pa.nulls(1, known.schema.types[0])], schema=known.schema)])
    wanted = np.array([numbers.get(row, earlier.num_rows) for _, row in differing], np.int64)
    values = gathered(known, wanted).column("value")
    return Difference(at.position, plan.position, after.set_column(2, "value", values), after)


def _texts(table: pa.Table, schema: ValueSchema) -> dict[tuple[int, Any], object]:
    """Return the values' bytes, or JSON text, by key group and key. Every row has a value."""
    texts = [text for chunk in table.column("value").chunks for text in avro_values(chunk, schema).to_pylist()]
    return dict(zip(_rows(table), texts, strict=True))


def _rows(table: pa.Table) -> Iterator[tuple[int, Any]]:
    return zip(*(table.column(name).to_pylist() for name in _ROW), strict=True)
