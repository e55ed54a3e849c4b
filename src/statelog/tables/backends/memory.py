"""`MemoryBackend`: a state in a dict. It dies with the process, and comes back from snapshot and tail."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from statelog.recovery import Recovery
from statelog.schemas.changes.changes import gone_and_live
from statelog.tables.backends.backend import StatePlace
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule

__all__ = ["MemoryBackend"]

_BATCH_ROWS = 5_000
"""As many rows at a time are Python objects beside the state: few enough to lie in the processor's cache until they
are taken."""


class MemoryBackend:
    """A dict of the state at `place`. To range over keys looks at every one and sorts those that are wanted."""

    def __init__(self, keys: KeyRule, values: ValueRule, state: dict[Any, Any]) -> None:
        self._keys = keys
        self._values = values
        self._state = state
        self.get: Callable[[Any], Any] = state.get
        """The dict's own: the way of every read."""

    @classmethod
    def recovered(cls, recovery: Recovery, keys: KeyRule, values: ValueRule) -> "MemoryBackend":
        """With all of a recovered state. Raises as `Recovery.to_dict`."""
        state = recovery.to_dict()
        if keys.one is not None:
            state = {key: value for (_, key), value in state.items()}
        values.mend(state)
        return cls(keys, values, state)

    def __len__(self) -> int:
        return len(self._state)

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Those of the dict, in its order."""
        if key_groups is None:
            return iter(self._state.items())
        keys, wanted = list(self._state), frozenset(key_groups)
        chosen = (key for key, group in zip(keys, self._keys.groups_of(keys), strict=True) if group in wanted)
        return ((key, self._state[key]) for key in chosen)

    def range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """A sorted copy of the keys, and their values as they are read."""
        keys = (key for key in self._state if (start is None or key >= start) and (end is None or key < end))
        return ((key, self._state[key]) for key in sorted(keys))

    def apply(self, changes: Mapping[Any, Any], place: StatePlace) -> None:  # noqa: ARG002 - a dict is lost with its place
        """Change the dict."""
        gone = [key for key, value in changes.items() if value is None]
        self._state.update(changes)
        deque(map(self._state.pop, gone), maxlen=0)

    def load(self, changes: pa.Table) -> None:
        """Change the dict: column by column, and a delete of no key is none."""
        for rows in changes.to_batches(max_chunksize=_BATCH_ROWS):
            gone, puts = gone_and_live(rows)
            deque(map(self._state.pop, self._keys.of_columns(gone), repeat(None)), maxlen=0)
            values = self._values.of_column(puts.column("value"))
            self._state.update(zip(self._keys.of_columns(puts), values, strict=True))

    def move(self, place: StatePlace) -> None:
        """Nothing: a dict is lost with its place."""

    def close(self) -> None:
        """Nothing is held but memory."""
