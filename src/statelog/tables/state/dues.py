"""`DueIndex`: which keys have a due, and which keys are due first. Pure.

    of       the due of each key that has one
    at       the keys of each due: one key, or a set of several
    heap     the dues in order, with some that no key has any more

Keys that share a millisecond share one entry of the heap. So a large state that expires at a steady rate, or all at
once, has few entries, and nothing is sorted.

Invariants:
- `of` and `at` say the same at any time; the heap has every due of `at`.
- Dues that no key has any more are at most half of the heap, but for a few. The top of the heap is none of them.
- A key is never a set.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

Dues: TypeAlias = Mapping[Any, int]
"""The dues of some keys, in milliseconds since 1970."""
NO_DUES: Dues = MappingProxyType({})
DueKey: TypeAlias = tuple[Any, int]
"""A key and its due."""
IsWanted: TypeAlias = Callable[[Any], bool]
"""Selects keys."""
_SPARE = 64


class DueIndex:
    """The dues of a state in memory. It reads no clock."""

    def __init__(self, dues: Dues = NO_DUES) -> None:
        self._of: dict[Any, int] = {}
        self._at: dict[int, Any] = {}
        self._heap: list[int] = []
        self.get: Callable[[Any], int | None] = self._of.get
        """Return the due of a key, None if it has none."""
        self.change(dues, dues)

    def __len__(self) -> int:
        """Count the keys that have a due."""
        return len(self._of)

    def change(self, keys: Iterable[Any], dues: Dues) -> None:
        """Give these keys their dues. A key that is not in `dues` loses the one that it had."""
        of, at = self._of, self._at
        for key in keys if of else dues:
            due_ms, was = dues.get(key), of.get(key)
            if was == due_ms:
                continue
            if was is not None:
                self._remove(key, was)
            if due_ms is not None:
                of[key] = due_ms
                held = at.get(due_ms)
                if held is None:
                    at[due_ms] = key
                    heappush(self._heap, due_ms)
                elif _is_several(held):
                    held.add(key)
                else:
                    at[due_ms] = {held, key}

    def _remove(self, key: Any, due_ms: int) -> None:
        del self._of[key]
        held = self._at[due_ms]
        if _is_several(held):
            held.discard(key)
            if held:
                return
        del self._at[due_ms]
        if len(self._heap) > 2 * len(self._at) + _SPARE:
            heap = list(self._at)
            heapify(heap)
            self._heap = heap
        while self._heap and self._heap[0] not in self._at:
            heappop(self._heap)

    # ---- what is due

    @property
    def earliest_ms(self) -> int | None:
        """The earliest due; None if no key has one. A thread may read it while another one changes the index."""
        heap = self._heap
        return heap[0] if heap else None  # Another thread only adds to it.

    def overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted keys that are due at `now_ms`, with their dues, oldest first."""
        found: list[DueKey] = []
        for due_ms in self._through(now_ms):
            held = self._at[due_ms]
            if _is_several(held):
                wanted = ((key, due_ms) for key in held if is_wanted(key))
                found.extend(islice(wanted, most - len(found)))  # There may be millions.
            elif is_wanted(held):
                found.append((held, due_ms))
            if len(found) >= most:
                return found
        return found

    def overdue_count(self, now_ms: int) -> int:
        """Count the keys that are due at `now_ms`."""
        return sum(len(_keys(self._at[due_ms])) for due_ms in self._through(now_ms))

    def _through(self, now_ms: int) -> Iterator[int]:
        """Yield the dues of `at` up to a time, in order. The heap is read from its top, and stays as it is."""
        heap, last_ms = self._heap, -1
        ahead = [(heap[0], 0)] if heap else []
        while ahead:
            due_ms, place = heappop(ahead)
            if due_ms > now_ms:
                return
            if due_ms != last_ms and due_ms in self._at:
                yield due_ms
            last_ms = due_ms
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(ahead, (heap[child], child))


def _keys(held: Any) -> Collection[Any]:
    return held if _is_several(held) else (held,)


def _is_several(held: Any) -> TypeGuard[set[Any]]:
    return type(held) is set
