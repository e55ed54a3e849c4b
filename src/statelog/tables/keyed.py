"""`Keyed`: the common base of table and standby: a mapping, by key and by scans, its views, and its progress."""

from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, cast

from statelog.errors import NoSuchYear
from statelog.log.options import K, V
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.state.keys import KeyRule


class TableItems(ItemsView[K, V]):
    """Keys and values of a table, or of some of its key groups. `scan` reads them in one pass over the state."""

    def __init__(self, table: Mapping[K, V], scan: Callable[[], Iterator[tuple[K, V]]], *, is_part: bool) -> None:
        super().__init__(table)
        self._scan = scan
        self._is_part = is_part

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._scan()

    def __len__(self) -> int:
        """Count the keys. For a part of the key groups this reads them."""
        return sum(1 for _ in self) if self._is_part else super().__len__()

    def __contains__(self, item: object) -> bool:
        """Return whether a pair is in the view. For a part of the key groups this reads them."""
        return any(item == one for one in self) if self._is_part else super().__contains__(item)  # type: ignore[operator]  # the stubs want a pair


class TableValues(ValuesView[V]):
    """The values of a table, from one pass over the state."""

    def __init__(self, table: Mapping[K, V], scan: Callable[[], Iterator[tuple[K, V]]]) -> None:
        super().__init__(table)
        self._scan = scan

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._scan())


class Keyed(Mapping[K, V]):
    """A mapping with scans: of some key groups (None: all), or in the order of the keys."""

    _keys: KeyRule

    @property
    @abstractmethod
    def last_commit(self) -> LastCommit | None:
        """The last commit that is history, None before the first."""

    @property
    def progress(self) -> Metadata:
        """The progress of the last commit; empty before the first. Numbers are numbers."""
        last = self.last_commit
        return dict(last.metadata) if last else {}

    @property
    def key_groups(self) -> Sequence[int]:
        """The key groups of the state, ascending."""
        return self._keys.groups

    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or the default."""

    @abstractmethod
    def range(self, start: K | None = None, end: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values from `start` on and below `end` (None: no bound), in key order or in reverse."""

    @abstractmethod
    def _scan(self, key_groups: Sequence[int] | None, *, keys_only: bool = False) -> Iterator[tuple[K, V]]:
        """Yield keys and copies of their values. With `keys_only` the values are undefined."""

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return cast("V", value)

    def __contains__(self, key: object) -> bool:
        try:
            return self.get(cast("K", key)) is not None
        except NoSuchYear:
            return True

    def __bool__(self) -> bool:
        """Return whether there is a key, without counting them."""
        return next(iter(self), None) is not None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._scan(None, keys_only=True))

    def items(self, key_groups: Sequence[int] | None = None) -> TableItems[K, V]:
        """Return a view of keys and values, of all key groups or of these, in no order. Raises KeyGroupMismatch."""
        groups = None if key_groups is None else self._keys.checked_groups(key_groups)
        return TableItems(self, lambda: self._scan(groups), is_part=groups is not None)

    def values(self) -> TableValues[V]:
        """Return a view of all values, in no order."""
        return TableValues(self, lambda: self._scan(None))

    def prefix(self, prefix: K, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values whose key has a prefix, in key order or in reverse. Costs as much as `range`.

        In a log whose callers name key groups, `prefix` is a pair, like every key. Raises InvalidChange for numbers.
        """
        return self.range(*self._keys.prefix_bounds(prefix), reverse=reverse)
