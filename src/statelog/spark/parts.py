"""Parts of a plan, one for each task. Cut during planning; tasks neither list, fold nor lease.

`Selection` has the key groups and keys that a read of a state needs, by its options and the query's filters.

Invariants:
- A filter only narrows the read; Spark applies all filters to the rows again. So an unsupported filter is ignored, and
  only costs time.
- The parts tile the plan. Rows of a state come by (key group, key), changes in commit order.
- A task reads its part as a stream, in bounded memory. If a part of a snapshot is unreadable, the task plans again, at
  the same position, and continues after its last row: the rest is the same in every snapshot.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from statelog.errors import ConfigError, OffsetGone
from statelog.log import Log
from statelog.reading import AtPosition, Plan, SnapshotFailed, Terms, part_of
from statelog.recovery.changes import LEAST_BYTES, split_changes
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, share

_TASK_BYTES = 16 << 20
"""The size of a task: reading it takes a few times as long as Spark's overhead for a Python task, 30 to 60 ms."""
Key = bytes | str | int
_COMPARISONS: Mapping[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The key groups to read, ascending, and the keys of them; None for all."""

    key_groups: tuple[int, ...]
    keys: tuple[Key, ...] | None = None


def selected(descriptor: Descriptor, key_groups: Iterable[int] | None, key_texts: Iterable[str] | None) -> Selection:
    """Return the selection of the options. Raises ConfigError for a text that is no key of the log."""
    groups = range(descriptor.key_groups) if key_groups is None else key_groups
    whole = Selection(tuple(sorted(groups)))
    if key_texts is None:
        return whole
    return _with_keys(whole, [_key(text, descriptor.key_type) for text in key_texts], descriptor)


def narrowed(before: Selection, filters: Iterable[Filter], descriptor: Descriptor) -> Selection:
    """Return the selection that passes the filters of a query, all of which must hold."""
    found = before
    for one in filters:
        match one:
            case EqualTo(attribute=("key",), value=value) if _is_key(value, descriptor.key_type):
                found = _with_keys(found, [value], descriptor)
            case In(attribute=("key",), value=values) if all(_is_key(key, descriptor.key_type) for key in values):
                found = _with_keys(found, values, descriptor)
            case _:
                found = Selection(tuple(group for group in found.key_groups if _may_hold(one, group)), found.keys)
    return found


def _with_keys(before: Selection, keys: Iterable[Key | bytearray], descriptor: Descriptor) -> Selection:
    hashable = dict.fromkeys(bytes(key) if isinstance(key, bytearray) else key for key in keys)
    kept = tuple(key for key in hashable if before.keys is None or key in before.keys)
    groups = before.key_groups
    if descriptor.hash_rule is not HashRule.CALLER:
        theirs = {descriptor.key_group_of(key) for key in kept}
        groups = tuple(group for group in groups if group in theirs)
    return Selection(groups, kept)


def _may_hold(one: Filter, group: int) -> bool:
    """Return whether rows of a key group can pass a filter."""
    if getattr(one, "attribute", None) != ("key_group",):
        return True
    if isinstance(one, In):
        return group in one.value
    compare = _COMPARISONS.get(type(one))
    return compare is None or bool(compare(group, getattr(one, "value", None)))


def _is_key(value: object, kind: KeyType) -> bool:
    types: dict[KeyType, Any] = {KeyType.BYTES: bytes | bytearray, KeyType.STRING: str, KeyType.LONG: int}
    return isinstance(value, types[kind]) and not isinstance(value, bool)


def _key(text: str, kind: KeyType) -> Key:
    try:
        if kind is KeyType.LONG:
            return int(text)
        if kind is KeyType.BYTES:
            return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        hint = "Give long keys as whole numbers, bytes as text, or hexadecimal after 0x"
        raise ConfigError(f"the option keys names {text!r}, which is no key of type {kind}", hint=hint) from None
    return text


class PlanPart(InputPartition):
    """One task's part of a state, or of changes."""

    def __init__(self, plan: Plan) -> None:
        super().__init__((plan.start_position, plan.position))
        self.plan = plan


def lease_terms(lease_s: int, holder: str) -> Terms:
    """Return the lease terms for `leaseSeconds`. 0 means no lease; the time to live is at least 1."""
    return Terms(holder, max(1, lease_s), wanted=lease_s > 0)


def change_parts(plan: Plan, partitions: int, minimum: int | None) -> list[PlanPart]:
    """Cut changes for tasks: at most one for each partition, fewer for few changes; or `minimum` tasks.

    Key groups stay whole unless `minimum` exceeds the number of partitions.
    """
    count = minimum or partitions
    least_bytes = LEAST_BYTES if minimum is None else 1
    parts = split_changes(plan, count, least_bytes=least_bytes, whole_key_groups=count <= partitions)
    return [PlanPart(part) for part in parts]


def state_parts(plan: Plan, key_groups: Sequence[int], descriptor: Descriptor, minimum: int | None) -> list[PlanPart]:
    """Cut a state for tasks: at most one for each partition, fewer for a small state; or `minimum` tasks."""
    if not key_groups:
        return []
    whole = part_of(plan, frozenset(key_groups), descriptor)
    count = minimum or min(descriptor.partitions, round(whole.size_bytes / _TASK_BYTES))
    return [PlanPart(part_of(whole, frozenset(part), descriptor)) for part in slices(key_groups, count)]


def slices(key_groups: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Cut the key groups into `count` contiguous parts, or one for each group if there are fewer.

    If all key groups are cut into as many parts as the log has partitions, every part is one partition.
    """
    parts = max(1, min(count, len(key_groups)))
    shares = [share(len(key_groups), worker=part, workers=parts) for part in range(parts)]
    return [tuple(key_groups[one.start : one.stop]) for one in shares]


def read_state(log: Log, plan: Plan) -> Iterator[pa.Table]:
    """Yield the rows of a part of a state by (key group, key), in tables of key_group, op, key, value, and perhaps due.

    Raises Damaged, Unavailable.
    """
    # Nothing to renew: the planner holds the plan.
    settings = RecoverySettings(holder="spark-task", threads=1, value_schema_id=plan.value_schema_id)
    given = 0
    with suppress(SnapshotFailed, OffsetGone), closing(PlanReader(log, plan, settings).sorted_tables()) as tables:
        for table in tables:
            given += table.num_rows
            yield table
        return
    # The rest after the given rows, from any readable snapshot.
    rest = recover(log, key_groups=plan.key_groups, at=AtPosition(plan.position), settings=settings)
    with rest.stream(due=True) as stream:
        for changes, _ in stream:
            skipped = min(given, changes.num_rows)
            given -= skipped
            if skipped < changes.num_rows:
                yield changes.slice(skipped)
