"""Views of a table: its keys with their values, as a mapping has them, and only those of some key groups."""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

__all__ = ["TableItems", "TableValues"]

K = TypeVar("K")
V = TypeVar("V")


class TableItems(ItemsView[K, V]):
    """Keys and values of a table, or of some of its key groups; `scan` gives them, from one pass over the state."""

    def __init__(self, table: Mapping[K, V], scan: Callable[[], Iterator[tuple[K, V]]], *, is_part: bool) -> None:
        super().__init__(table)
        self._scan = scan
        self._is_part = is_part

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._scan()

    def __len__(self) -> int:
        """Counting those of some key groups reads them."""
        return sum(1 for _ in self) if self._is_part else super().__len__()

    def __contains__(self, item: object) -> bool:
        """Looking in some key groups reads them."""
        return any(item == one for one in self) if self._is_part else super().__contains__(item)  # type: ignore[operator]  # the stubs want a pair


class TableValues(ValuesView[V]):
    """The values of a table, from one pass over the state."""

    def __init__(self, table: Mapping[K, V], scan: Callable[[], Iterator[tuple[K, V]]]) -> None:
        super().__init__(table)
        self._scan = scan

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._scan())
