"""`RecentCommits`: what was committed last, as objects, before a store that would have to decode it. Pure.

Two generations, the younger one filled until it is half of the bound: the older one is dropped as a whole.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any, Final, cast

UNKNOWN: Final = object()
"""What is found of a key that is not known here."""
_EACH_BYTES = 200
"""Of a key and a value as two objects, and of their place in a dict, besides what is in them."""
_SAMPLES = 32


def held_bytes(values: Sequence[Any]) -> int:
    """About how much memory typed values take, from some of them, wherever they lie."""
    some = values[:: max(1, len(values) // _SAMPLES)]
    return len(values) * sum(map(_held_bytes, some)) // max(1, len(some))


def _held_bytes(value: Any) -> int:
    size, inner = getsizeof(value), cast("Collection[Any]", ())
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        inner = cast("Collection[Any]", value)
    return size + sum(map(_held_bytes, inner))


class RecentCommits:
    """The newest changes that were committed, at most so many bytes of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.forget()

    def forget(self) -> None:
        """The store was changed in another way."""
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._young_bytes = self._old_bytes = 0

    def find(self, key: Any) -> Any:
        """The value of a key, None if it was deleted, UNKNOWN if the store has to be asked."""
        value = self._young.get(key, UNKNOWN)
        return self._old.get(key, UNKNOWN) if value is UNKNOWN else value

    def take(self, changes: Mapping[Any, Any], data_bytes: int) -> None:
        """The store has these changes now, whose keys and values have so many bytes."""
        size_bytes = data_bytes + _EACH_BYTES * len(changes)
        if size_bytes > self._bytes_max:
            self.forget()  # Of those that there is no room for, too.
            count = len(changes) * self._bytes_max // size_bytes
            changes, size_bytes = dict(islice(changes.items(), len(changes) - count, None)), self._bytes_max
        young_bytes = self._young_bytes + size_bytes
        if young_bytes > self._bytes_max // 2 or young_bytes + self._old_bytes > self._bytes_max:
            self._turn_old(leaves_bytes=self._bytes_max - size_bytes)
        self._young.update(changes)
        self._young_bytes += size_bytes

    def _turn_old(self, *, leaves_bytes: int) -> None:
        """Begin a young generation. The one before stays as the old one, if there is room for it."""
        young, young_bytes = self._young, self._young_bytes
        self.forget()
        if young_bytes <= leaves_bytes:
            self._old, self._old_bytes = young, young_bytes
