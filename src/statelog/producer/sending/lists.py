"""`ChangeLists`: single changes in plain lists, until they become Arrow in bulk. The hottest state of a writer.

A put of bytes under a key that needs no further look goes straight into them, in `ChangeWriter.put`: a call less is a
fifth of the whole put. Every other change comes through the buffer, which owns them.

Invariants:
- Keys and values, and key groups where the caller names them, are of one length between two calls of the writer.
- While a put is in the middle of them there is no room, and nobody else touches them.
- What went straight into them is smaller than `LARGE`, and there was room for it.
"""

from statelog.producer.sending.change_maker import Key, Value

__all__ = ["LARGE", "ChangeLists", "Unquick"]

LARGE = 1 << 20
"""From here on a change is made and measured at once, before it counts as buffered."""


class Unquick:
    """The class of no key: none goes without a further look."""


class ChangeLists:
    """Changes that wait for Arrow: at most `roll_rows` of them, of about `list_bytes`.

    One number bounds both: a change counts for its bytes, but at least for its share of the rows.
    """

    __slots__ = ("_list_bytes", "_rest_bytes", "groups", "keys", "least_bytes", "quick_class", "room_bytes", "values")

    def __init__(self, quick_class: type, *, roll_rows: int, list_bytes: int) -> None:
        self._list_bytes = list_bytes
        self.quick_class = quick_class
        """The class of the keys that are valid, with values of bytes, as they are."""
        self.least_bytes = -(-list_bytes // roll_rows)
        self.clear()

    def clear(self) -> None:
        """Begin anew. Whoever has the former lists keeps them."""
        self.keys: list[Key] = []
        self.values: list[Value | None] = []
        self.groups: list[int] = []
        self._give_room(self._list_bytes)

    def has_room(self, size_bytes: int) -> bool:
        """Whether more may wait behind a change of this size, whose room is then taken."""
        rest = self.room_bytes + self._rest_bytes - max(size_bytes, self.least_bytes)
        if rest > 0:
            self._give_room(rest)
        return rest > 0

    def _give_room(self, size_bytes: int) -> None:
        self.room_bytes = min(size_bytes, LARGE)
        """What may come without asking; a change that is as large as this asks."""
        self._rest_bytes = size_bytes - self.room_bytes
