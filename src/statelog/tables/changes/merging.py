"""What a table shows: the committed state, with the changes on top that no commit holds. Pure."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["merged", "merged_in_order", "prefix_end"]

_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)


def merged(
    committed: Iterator[tuple[Any, Any]], changes: Mapping[Any, Any], is_wanted: Callable[[Any], bool]
) -> Iterator[tuple[Any, Any]]:
    """Committed keys and values under the changes, in any order. `is_wanted` chooses among the changed keys."""
    yield from ((key, value) for key, value in committed if key not in changes)
    yield from ((key, value) for key, value in changes.items() if value is not None and is_wanted(key))


def merged_in_order(committed: Iterator[tuple[Any, Any]], changes: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The same in the order of the keys, as `committed` is. `changes` are those between the same bounds."""
    changed = sorted(key for key, value in changes.items() if value is not None)
    rest = ((key, value) for key, value in committed if key not in changes)
    return heapq.merge(rest, ((key, changes[key]) for key in changed), key=_key)


def _key(item: tuple[Any, Any]) -> Any:
    return item[0]


def prefix_end(prefix: bytes | str) -> bytes | str | None:
    """The least key behind all that begin with a prefix; None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    text = prefix.rstrip(_LAST_CHARACTER)
    if not text:
        return None
    following = ord(text[-1]) + 1
    return text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
