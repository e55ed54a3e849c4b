"""`RowGroupCache`: row groups that were read on demand, decoded: the last ones used, within a bound of bytes. Pure.

Invariant: it never holds more than its bound. A row group that is larger is not kept at all.
"""

from collections import OrderedDict

from statelog.tables.remote.row_group import RowGroup

__all__ = ["RowGroupCache"]


class RowGroupCache:
    """Row groups by run and number. Belongs to one thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, int], RowGroup] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str, number: int) -> RowGroup | None:
        """A row group that is held, which is now the last one used."""
        found = self._held.get((path, number))
        if found is not None:
            self._held.move_to_end((path, number))
        return found

    def put(self, path: str, number: int, row_group: RowGroup) -> None:
        """Hold it, and let go of those that were not used for the longest time."""
        if row_group.size_bytes > self._most_bytes or (path, number) in self._held:
            return
        self._held[path, number] = row_group
        self.size_bytes += row_group.size_bytes
        while self.size_bytes > self._most_bytes:
            _, dropped = self._held.popitem(last=False)
            self.size_bytes -= dropped.size_bytes
