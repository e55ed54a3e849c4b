"""`Selection`: the key groups and keys that a read of a state needs, by its options and the query's filters. Pure.

A filter only narrows what is read; Spark applies all of them to the rows again. So what is not understood here is
left out, and costs time and nothing else.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from statelog.errors import ConfigError
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType

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
    """What the options ask for. Raises ConfigError for a text that is no key of the log's."""
    groups = range(descriptor.key_groups) if key_groups is None else key_groups
    whole = Selection(tuple(sorted(groups)))
    if key_texts is None:
        return whole
    return _with_keys(whole, [_key(text, descriptor.key_type) for text in key_texts], descriptor)


def narrowed(before: Selection, filters: Iterable[Filter], descriptor: Descriptor) -> Selection:
    """What is left behind the filters of a query, all of which have to hold."""
    found = before
    for one in filters:
        match one:
            case EqualTo(attribute=("key",), value=value) if _is_key(value, descriptor.key_type):
                found = _with_keys(found, [_as_key(value)], descriptor)
            case In(attribute=("key",), value=values) if all(_is_key(key, descriptor.key_type) for key in values):
                found = _with_keys(found, [_as_key(key) for key in values], descriptor)
            case _:
                found = Selection(tuple(group for group in found.key_groups if _may_hold(one, group)), found.keys)
    return found


def _with_keys(before: Selection, keys: list[Key], descriptor: Descriptor) -> Selection:
    kept = tuple(dict.fromkeys(key for key in keys if before.keys is None or key in before.keys))
    groups = before.key_groups
    if descriptor.hash_rule is not HashRule.CALLER:
        theirs = {descriptor.key_group_of(key) for key in kept}
        groups = tuple(group for group in groups if group in theirs)
    return Selection(groups, kept)


def _may_hold(one: Filter, group: int) -> bool:
    """Whether rows of a key group can pass a filter."""
    if getattr(one, "attribute", None) != ("key_group",):
        return True
    if isinstance(one, In):
        return group in one.value
    compare = _COMPARISONS.get(type(one))
    return compare is None or bool(compare(group, getattr(one, "value", None)))


def _is_key(value: object, kind: KeyType) -> bool:
    types: dict[KeyType, Any] = {KeyType.BYTES: bytes | bytearray, KeyType.STRING: str, KeyType.LONG: int}
    return isinstance(value, types[kind]) and not isinstance(value, bool)


def _as_key(value: Any) -> Key:
    return bytes(value) if isinstance(value, bytearray) else value


def _key(text: str, kind: KeyType) -> Key:
    try:
        if kind is KeyType.LONG:
            return int(text)
        if kind is KeyType.BYTES:
            return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        raise ConfigError(
            f"the option keys names {text!r}, which is no key of type {kind}",
            hint="Long keys are whole numbers; bytes are text, or hexadecimal behind 0x",
        ) from None
    return text
