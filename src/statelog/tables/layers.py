"""`Layers`: the uncommitted changes above the committed state, in one layer for each checkpoint or transaction.

    active                   changes since the last checkpoint, or since the innermost transaction began
    suspended, newest last   changes before each open transaction, since the last checkpoint
    sealed, newest last      checkpoints that were persisted and are not committed yet

A read goes from the active layer down to the committed state. Undo drops a layer.

Invariants:
- Committed changes are in no layer, and changes in a layer are not in the state: a kill leaves no trace of them.
- A layer has the last value of each key, in the order in which keys were first changed; None is a delete. If every
  change is logged, a layer's history has all of them in their order.
- A key of a layer has the due of its last change there, and none if that has none, whatever is below.
- A layer has its outputs in the order in which they were sent. What drops, cuts or restores changes does so with
  outputs, too.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, filterfalse, islice
from operator import itemgetter
from typing import Any, TypeAlias

from statelog.errors import Misuse
from statelog.schemas.outputs.output import Output
from statelog.tables.state.dues import IsWanted

LoggedChange: TypeAlias = tuple[Any, Any, int | None]
"""A key, its value (None for a delete), and its due in milliseconds."""
_FEW = 100
"""Up to so many new keys are inserted into the sorted ones; more are sorted with them."""


@dataclass(slots=True)
class Layer:
    """Changes by key, None for a delete; their history in order, if every change is logged; dues; and what was sent.

    `dues`: in milliseconds, of the keys whose last change here is a put with a due.
    `outputs`: messages for other topics, each with the table's count of changes behind it.
    """

    changes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    history: list[LoggedChange] = field(default_factory=list[LoggedChange])
    dues: dict[Any, int] = field(default_factory=dict[Any, int])
    outputs: list[tuple[int, Output]] = field(default_factory=list[tuple[int, Output]])
    _ordered: list[Any] = field(default_factory=list[Any])

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a change nor an output."""
        return not self.changes and not self.outputs

    def put(self, key: Any, value: Any, due_ms: int | None) -> None:
        """Put a row with a due, or without one; None as the value deletes."""
        self.changes[key] = value
        if due_ms is None:
            self.dues.pop(key, None)
        else:
            self.dues[key] = due_ms

    def take(self, newer: "Layer") -> None:
        """Take the changes and outputs of a newer layer."""
        self.changes.update(newer.changes)
        self.history.extend(newer.history)
        if self.dues:
            for key in newer.changes.keys() - newer.dues.keys():
                self.dues.pop(key, None)
        self.dues.update(newer.dues)
        self.outputs.extend(newer.outputs)

    def between(self, start: Any, end: Any) -> list[Any]:
        """Return the keys from `start` on and below `end` (None: no bound), in their order. The order is cached."""
        new = len(self.changes) - len(self._ordered)
        if new > _FEW:
            self._ordered = sorted(chain(self._ordered, islice(self.changes, len(self._ordered), None)))
        elif new:  # The oldest first, so that the next call can go on if a signal's handler raises here.
            for key in [*islice(reversed(self.changes), new)][::-1]:
                insort(self._ordered, key)
        first = 0 if start is None else bisect_left(self._ordered, start)
        return self._ordered[first : None if end is None else bisect_left(self._ordered, end)]


class Layers:
    """The layers of one table."""

    def __init__(self) -> None:
        self.active = Layer()
        self.suspended: list[Layer] = []
        """The changes before each open transaction."""
        self._sealed: deque[Layer] = deque()
        self.below: list[dict[Any, Any]] = []
        """The changes below the active layer, newest first, in the order in which a read goes through them."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was changed or sent since the last checkpoint."""
        return self.active.is_empty and all(layer.is_empty for layer in self.suspended)

    @property
    def unsent(self) -> int:
        """The number of outputs since the last checkpoint."""
        return sum(len(layer.outputs) for layer in (*self.suspended, self.active))

    def all(self) -> Iterator[Layer]:
        """Iterate over all layers with changes, oldest first."""
        return (layer for layer in (*self._sealed, *self.suspended, self.active) if layer.changes)

    def merged(self) -> dict[Any, Any]:
        """Return the newest uncommitted change of each key; a copy only if there are several layers."""
        first, *others = [layer.changes for layer in self.all()] or [{}]
        return {key: value for changes in (first, *others) for key, value in changes.items()} if others else first

    def holding(self, key: Any) -> Layer | None:
        """Return the newest layer with a change of a key; None if there is none."""
        if key in self.active.changes:
            return self.active
        if self.below:
            for layer in (*reversed(self.suspended), *reversed(self._sealed)):
                if key in layer.changes:
                    return layer
        return None

    def unchanged(self) -> IsWanted:
        """Return a function that says of a key whether no layer has changed it."""
        changed = [layer.changes for layer in self.all()]
        if len(changed) == 1:  # As a rule, and in half the time.
            only = changed[0]
            return lambda key: key not in only

        def is_unchanged(key: Any) -> bool:
            for changes in changed:  # noqa: SIM110 - twice as fast as `all`
                if key in changes:
                    return False
            return True

        return is_unchanged

    def dues(self) -> dict[Any, int]:
        """Return the dues of all rows here, as their newest changes have them."""
        return reduce(dues_behind, self.all(), dict[Any, int]())

    def between(self, start: Any, end: Any) -> dict[Any, Any]:
        """Return the newest uncommitted changes of keys from `start` on and below `end` (None: no bound)."""
        return {key: layer.changes[key] for layer in self.all() for key in layer.between(start, end)}

    # ---- scans

    def over(
        self, committed: Iterator[tuple[Any, Any]], is_wanted: IsWanted, is_over: IsWanted | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Merge committed keys and values with the changes, in any order.

        `is_wanted`: selects among changed keys; `is_over`: which of those to leave out.
        """
        changes = self.merged()
        below = ((key, value) for key, value in committed if key not in changes)
        live = ((key, value) for key, value in changes.items() if value is not None and is_wanted(key))
        return chain(below, live if is_over is None else (row for row in live if not is_over(row[0])))

    def over_range(
        self,
        committed: Iterator[tuple[Any, Any]],
        start: Any,
        end: Any,
        is_over: IsWanted | None = None,
        *,
        reverse: bool,
    ) -> Iterator[tuple[Any, Any]]:
        """Merge keys and values between bounds (None: no bound), in the order of `committed`, by key or in reverse.

        `is_over`: which changed keys to leave out.
        """
        changes = self.between(start, end)
        live = (key for key, value in changes.items() if value is not None)
        changed = sorted(live if is_over is None else filterfalse(is_over, live), reverse=reverse)
        rest = ((key, value) for key, value in committed if key not in changes)
        return heapq.merge(rest, ((key, changes[key]) for key in changed), key=itemgetter(0), reverse=reverse)

    # ---- checkpoints

    def seal(self) -> Layer:
        """Make the active layer a checkpoint's, and return it. Raises Misuse in a transaction."""
        if self.suspended:
            raise Misuse("a table cannot commit inside a transaction", hint="Commit after the `with` block")
        sealed, self.active = self.active, Layer()
        self._sealed.append(sealed)
        self._restack()
        return sealed

    def unseal(self) -> None:
        """Make the newest checkpoint the active layer again, because it was refused before anything was sent."""
        self.active = self._sealed.pop()
        self._restack()

    @property
    def sealed_before(self) -> list[Layer]:
        """The checkpoints before the newest one, newest first."""
        return list(self._sealed)[-2::-1]

    def oldest(self, checkpoints: int) -> list[Layer]:
        """Return the layers of the oldest checkpoints, oldest first."""
        return list(islice(self._sealed, checkpoints))

    def committed(self, checkpoints: int) -> None:
        """Drop the layers of the oldest checkpoints: they are committed, and the state has them."""
        for _ in range(checkpoints):
            self._sealed.popleft()
        self._restack()

    def cut(self, keys: int, count: int, changes: int) -> Layer | None:
        """Cut the last changes and outputs off the active layer, and return them as a layer.

        `keys`: the keys that it had before them; `count`: the table's count of changes then; `changes`: how many
        followed, outputs included. Return None if they replaced one of these keys: a layer has only the last value of
        each.
        """
        layer = self.active
        kept = bisect_right(layer.outputs, count, key=itemgetter(0))
        changes -= len(layer.outputs) - kept
        if len(layer.changes) - keys != changes:
            return None
        items, made = list(layer.changes.items()), len(layer.history) - changes
        self.active = Layer(dict(items[:keys]), layer.history[:made] if layer.history else [], {}, layer.outputs[:kept])
        later = Layer(dict(items[keys:]), layer.history[made:], {}, layer.outputs[kept:])
        for key, due_ms in layer.dues.items():
            (later if key in later.changes else self.active).dues[key] = due_ms
        return later

    # ---- undo

    def begin(self) -> Layer:
        """Begin a transaction. Return the layer of the changes before it."""
        before = self.active
        self.suspended.append(before)
        self.active = Layer()
        self._restack()
        return before

    def end(self, before: Layer, *, keep: bool) -> None:
        """End the innermost transaction: its changes join those before it, or are dropped.

        Raises Misuse if `begin` gave the layer `before` to another transaction. Then nobody knows which change belongs
        to which transaction, so all open ones are undone, and none of them can end later.
        """
        if not self.suspended or self.suspended[-1] is not before:
            if any(layer is before for layer in self.suspended):
                self.active = replace(self.suspended[0])
                self.suspended.clear()
                self._restack()
            hint = "Nest their `with` blocks, and let one asyncio task wait for the other"
            raise Misuse("transactions were not ended innermost first, so all of them are undone", hint=hint)
        inner, self.active = self.active, self.suspended.pop()
        if keep:
            self.active.take(inner)
        self._restack()

    def forget(self) -> None:
        """Drop everything."""
        self.active = Layer()
        self.suspended.clear()
        self._sealed.clear()
        self._restack()

    def _restack(self) -> None:
        self.below = [layer.changes for layer in (*reversed(self.suspended), *reversed(self._sealed))]


def dues_behind(dues: dict[Any, int], layer: Layer) -> dict[Any, int]:
    """Return the dues of rows once they have the changes of a layer, too."""
    if not dues or not layer.changes:
        return {**dues, **layer.dues}
    return {**{key: due_ms for key, due_ms in dues.items() if key not in layer.changes}, **layer.dues}
