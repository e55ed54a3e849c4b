"""`Layers`: the changes that no commit holds yet, over what is committed: one layer for each checkpoint or transaction.

    active                 what was changed since the last checkpoint, or since the innermost transaction began
    suspended, newest last what was changed before each open transaction, since the last checkpoint
    sealed, newest last    checkpoints that were persisted and are not committed yet

A read looks from the active layer down, and then at the committed state. To undo is to drop a layer.

Invariants:
- What is committed is never in a layer, and what is in a layer is never in the state: a kill leaves no trace of it.
- A layer has the last value of each key, in the order in which keys were changed first; None is a delete. Where every
  change is logged, a layer's history has all of them in their order.
"""

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from statelog.errors import Misuse

_FEW = 100
"""So many keys are put in their place among the others; more are sorted with them."""


@dataclass(slots=True)
class Layer:
    """Changes by key, None for a delete; and all of them in order if every one is logged."""

    changes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    history: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    _ordered: list[Any] = field(default_factory=list[Any])

    def between(self, start: Any, end: Any) -> list[Any]:
        """The keys from `start` on and below `end` (None: no bound), in their order, which is kept."""
        new = len(self.changes) - len(self._ordered)
        if new > _FEW:
            self._ordered = sorted(chain(self._ordered, islice(self.changes, len(self._ordered), None)))
        elif new:  # The oldest first: a signal's handler may raise here, and the next call goes on behind it.
            for key in [*islice(reversed(self.changes), new)][::-1]:
                insort(self._ordered, key)
        first = 0 if start is None else bisect_left(self._ordered, start)
        return self._ordered[first : None if end is None else bisect_left(self._ordered, end)]


class Layers:
    """The layers of one table."""

    def __init__(self) -> None:
        self.active = Layer()
        self.suspended: list[Layer] = []
        """What was changed before each open transaction began."""
        self._sealed: deque[Layer] = deque()
        self.below: list[dict[Any, Any]] = []
        """What a read looks at behind the active layer, newest first."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was changed since the last checkpoint."""
        return not self.active.changes and not any(layer.changes for layer in self.suspended)

    def all(self) -> Iterator[Layer]:
        """All layers that hold something, oldest first."""
        return (layer for layer in (*self._sealed, *self.suspended, self.active) if layer.changes)

    def merged(self) -> dict[Any, Any]:
        """The newest change of each key that no commit holds; a copy only if they are of several layers."""
        first, *others = [layer.changes for layer in self.all()] or [{}]
        return {key: value for changes in (first, *others) for key, value in changes.items()} if others else first

    def between(self, start: Any, end: Any) -> dict[Any, Any]:
        """Those of the keys from `start` on and below `end` (None: no bound)."""
        return {key: layer.changes[key] for layer in self.all() for key in layer.between(start, end)}

    # ---- what is shown

    def over(self, committed: Iterator[tuple[Any, Any]], is_wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
        """Committed keys and values under the changes, in any order. `is_wanted` chooses among the changed keys."""
        changes = self.merged()
        below = ((key, value) for key, value in committed if key not in changes)
        return chain(below, ((key, value) for key, value in changes.items() if value is not None and is_wanted(key)))

    def over_range(
        self, committed: Iterator[tuple[Any, Any]], start: Any, end: Any, *, reverse: bool
    ) -> Iterator[tuple[Any, Any]]:
        """The same in the order of the keys, or in reverse, as `committed` is, between two of them (None: no bound)."""
        changes = self.between(start, end)
        changed = sorted((key for key, value in changes.items() if value is not None), reverse=reverse)
        rest = ((key, value) for key, value in committed if key not in changes)
        return heapq.merge(rest, ((key, changes[key]) for key in changed), key=itemgetter(0), reverse=reverse)

    # ---- checkpoints

    def seal(self) -> Layer:
        """The active layer becomes a checkpoint's. Not in a transaction."""
        if self.suspended:
            raise Misuse("a commit inside of a transaction", hint="Commit behind the `with` block")
        sealed, self.active = self.active, Layer()
        self._sealed.append(sealed)
        self._restack()
        return sealed

    def unseal(self) -> None:
        """The newest checkpoint was refused before anything of it was sent: its changes are the active ones again."""
        self.active = self._sealed.pop()
        self._restack()

    def oldest(self, checkpoints: int) -> list[Layer]:
        """The layers of the oldest checkpoints, oldest first."""
        return list(islice(self._sealed, checkpoints))

    def committed(self, checkpoints: int) -> None:
        """The oldest checkpoints are committed: drop their layers, which the state has."""
        for _ in range(checkpoints):
            self._sealed.popleft()
        self._restack()

    def cut(self, keys: int, changes: int) -> Layer | None:
        """Cut off and return what so many changes have made of the active layer since it had `keys` keys. Return None
        if they replaced one of these: a layer has only the last value of each.
        """
        layer = self.active
        if len(layer.changes) - keys != changes:
            return None
        items, made = list(layer.changes.items()), len(layer.history) - changes
        self.active = Layer(dict(items[:keys]), layer.history[:made] if layer.history else [])
        return Layer(dict(items[keys:]), layer.history[made:])

    # ---- undo

    def begin(self) -> Layer:
        """Begin a transaction; returns the layer of what was changed before."""
        before = self.active
        self.suspended.append(before)
        self.active = Layer()
        self._restack()
        return before

    def end(self, before: Layer, *, keep: bool) -> None:
        """End the innermost transaction: its changes join what was changed before, or are dropped.

        Raises Misuse if it is not the one that `begin` gave this layer for: whose change is whose is not known then, so
        all that are open are undone, and none of them ends any more.
        """
        if not self.suspended or self.suspended[-1] is not before:
            if any(layer is before for layer in self.suspended):
                self.active = replace(self.suspended[0])
                self.suspended.clear()
                self._restack()
            hint = "Nest their `with` blocks; of two asyncio tasks one waits for the other"
            raise Misuse("transactions end in another order than they began, so all of them are undone", hint=hint)
        inner, self.active = self.active, self.suspended.pop()
        if keep:
            self.active.changes.update(inner.changes)
            self.active.history.extend(inner.history)
        self._restack()

    def forget(self) -> None:
        """Drop everything."""
        self.active = Layer()
        self.suspended.clear()
        self._sealed.clear()
        self._restack()

    def _restack(self) -> None:
        self.below = [layer.changes for layer in (*reversed(self.suspended), *reversed(self._sealed))]
