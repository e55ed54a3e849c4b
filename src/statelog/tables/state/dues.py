"""`DueIndex`: which keys have a due, and which keys are due first. Pure.

    of       the due of each key that has one
    at       the keys of each due: one key, or a set of several
    heap     the dues in order, with some that no key has any more
    later    the dues of a recovered state in their order, until they come

Keys that share a millisecond share one entry of the heap. So a large state that expires at a steady rate, or all at
once, has few entries. A recovered state is sorted once the first of its dues comes: a table opens without that. Its
rows go over to `at` and the heap as their dues come, so no call has to take all of them.

Invariants:
- Each due of `of` is in `at`, or in `later`, or in both. What `later` says is right only if `of` says the same.
- The heap has every due of `at`, and `at` has no key whose due is another.
- Dues that no key has any more are at most half of the heap, but for a few. The top of the heap is none of them, and
  neither is the first one of `later`.
- A key is never a set.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

import numpy as np

Dues: TypeAlias = Mapping[Any, int]
"""The dues of some keys, in milliseconds since 1970."""
NO_DUES: Dues = MappingProxyType({})
DueKey: TypeAlias = tuple[Any, int]
"""A key and its due."""
IsWanted: TypeAlias = Callable[[Any], bool]
"""Selects keys."""
_SPARE = 64
_LEAST_SORTED = 1_000
"""Fewer rows of a recovered state go to `at` at once."""


class _Later:
    """The keys of a recovered state in the order of their dues, from the next one on that is still right."""

    def __init__(self, of: Dues) -> None:
        dues = np.fromiter(of.values(), np.int64, len(of))
        rows = np.argsort(dues, kind="stable")
        keys = list(of)
        self._of, self._next = of, 0
        self._keys = [keys[row] for row in rows.tolist()]
        self._dues: list[int] = dues[rows].tolist()

    @property
    def first_ms(self) -> int | None:
        """The first due; None if nothing is left."""
        return self._dues[self._next] if self._next < len(self._dues) else None

    def take(self, now_ms: int, most: int) -> Iterator[DueKey]:
        """Take up to so many rows from the front that are due."""
        while most and (due_ms := self.first_ms) is not None and due_ms <= now_ms:
            key = self._keys[self._next]
            self._next += 1
            self.skip()
            most -= 1
            yield key, due_ms

    def skip(self) -> None:
        """Go on to the next row that is right."""
        of, keys, dues = self._of, self._keys, self._dues
        while self._next < len(dues) and of.get(keys[self._next]) != dues[self._next]:
            self._next += 1

    def count(self, now_ms: int, is_counted: Callable[[Any, int], bool]) -> int:
        """Count the rows that are due, right, and counted."""
        of, keys, dues = self._of, self._keys, self._dues
        rows = range(self._next, bisect_right(dues, now_ms, self._next))
        return sum(of.get(keys[row]) == dues[row] and is_counted(keys[row], dues[row]) for row in rows)


class DueIndex:
    """The dues of a state in memory, with those of a recovered state, which it takes over. It reads no clock."""

    def __init__(self, dues: dict[Any, int] | None = None) -> None:
        self._of: dict[Any, int] = {} if dues is None else dues
        self._at: dict[int, Any] = {}
        self._heap: list[int] = []
        self._later: _Later | None = None
        self._unsorted_ms = min(self._of.values(), default=None)
        """The earliest due of a recovered state that is not sorted yet; None afterwards."""
        self.get: Callable[[Any], int | None] = self._of.get
        """Return the due of a key, None if it has none."""
        if len(self._of) < _LEAST_SORTED:
            self._sort()

    def __len__(self) -> int:
        """Count the keys that have a due."""
        return len(self._of)

    # ---- changes

    def change(self, keys: Iterable[Any], dues: Dues) -> None:
        """Give these keys their dues. A key that is not in `dues` loses the one that it had."""
        of = self._of
        for key in keys if of else dues:
            due_ms, was = dues.get(key), of.get(key)
            if was == due_ms:
                continue
            if due_ms is None:
                del of[key]
            else:
                of[key] = due_ms
            if self._unsorted_ms is not None:
                self._unsorted(due_ms, was)
                continue
            if was is not None:
                self._remove(key, was)
            if due_ms is not None:
                self._add(key, due_ms)

    def _unsorted(self, due_ms: int | None, was: int | None) -> None:
        """Note a change of a due before all are sorted, which they are if the earliest one has ended."""
        first_ms = self._unsorted_ms
        if due_ms is not None and first_ms is not None and due_ms < first_ms:
            self._unsorted_ms = due_ms
        if was == first_ms:
            self._sort()

    def _sort_by(self, now_ms: int) -> None:
        """Sort a recovered state if the first of its dues has come."""
        if self._unsorted_ms is not None and self._unsorted_ms <= now_ms:
            self._sort()

    def _sort(self) -> None:
        if len(self._of) < _LEAST_SORTED:
            for key, due_ms in self._of.items():
                self._add(key, due_ms)
        else:
            self._later = _Later(self._of)
        self._unsorted_ms = None

    def _add(self, key: Any, due_ms: int) -> None:
        held = self._at.get(due_ms)
        if held is None:
            self._at[due_ms] = key
            heappush(self._heap, due_ms)
        elif _is_several(held):
            held.add(key)
        elif held != key:
            self._at[due_ms] = {held, key}

    def _remove(self, key: Any, due_ms: int) -> None:
        """Remove a due that `of` has no more."""
        if self._later is not None and self._later.first_ms == due_ms:
            self._later.skip()
        held = self._at.get(due_ms)
        if _is_several(held):
            held.discard(key)
            if held:
                return
        elif held is None or held != key:
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
        heap, later, unsorted_ms = self._heap, self._later, self._unsorted_ms
        if unsorted_ms is not None:
            return unsorted_ms
        later_ms = None if later is None else later.first_ms
        if not heap or later_ms is None:
            return heap[0] if heap else later_ms  # Another thread only adds to it.
        return min(heap[0], later_ms)

    def overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted keys that are due at `now_ms`, with their dues, oldest first."""
        self._sort_by(now_ms)
        while True:
            next_ms = self._take(now_ms, most)
            found = self._overdue(now_ms if next_ms is None else next_ms, most, is_wanted)
            if len(found) >= most or next_ms is None:
                return found

    def _take(self, now_ms: int, most: int) -> int | None:
        """Take up to so many rows that are due from `later`. Return the due of the next one that is due; None if there
        is none.
        """
        if self._later is None:
            return None
        for key, due_ms in self._later.take(now_ms, most):
            self._add(key, due_ms)
        next_ms = self._later.first_ms
        if next_ms is None:
            self._later = None
        return next_ms if next_ms is not None and next_ms <= now_ms else None

    def _overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        found: list[DueKey] = []
        for due_ms in self._through(now_ms):
            held = self._at[due_ms]
            if _is_several(held):
                wanted = ((key, due_ms) for key in held if is_wanted(key))
                found.extend(islice(wanted, most - len(found)))  # There may be millions.
            elif is_wanted(held):
                found.append((held, due_ms))
            if len(found) >= most:
                break
        return found

    def overdue_count(self, now_ms: int) -> int:
        """Count the keys that are due at `now_ms`."""
        self._sort_by(now_ms)
        count = sum(len(_keys(self._at[due_ms])) for due_ms in self._through(now_ms))
        return count if self._later is None else count + self._later.count(now_ms, self._is_later)

    def _is_later(self, key: Any, due_ms: int) -> bool:
        """Return whether `at` does not have a key with this due."""
        held = self._at.get(due_ms)
        return held is None or key not in _keys(held)

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
