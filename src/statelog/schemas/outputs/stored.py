"""How far a writer's messages are published: a group's offset of partition 0 of the ledger topic, and its text. Pure.

Kafka's own tools show the group's lag, and may move the offset; they leave no text.

Invariants:
- A stored place counts only for the ledger topic whose id its text has: a deleted log of the same name had another one.
- No name of a log or a writer has a slash, so two writers never have one group.
"""

import json
from typing import NamedTuple

from statelog.errors import Corrupt
from statelog.schemas.ledger.place import Place


def outputs_group(log: str, writer: str) -> str:
    """Return the name of the group, and of the transactions, that publish a writer's messages."""
    return f"statelog.{log}/{writer}"


class StoredPlace(NamedTuple):
    """The id of a ledger topic, and the place there up to which everything is published."""

    ledger: str
    place: Place

    def to_text(self) -> str:
        """Return the text of the group's offset."""
        return json.dumps({"ledger": self.ledger, "place": self.place.to_json()}, separators=(",", ":"))

    @classmethod
    def of(cls, offset: int, text: str, ledger: str) -> "StoredPlace | None":
        """Read a group's offset, and its text; None if there is none for this ledger topic. Raises Corrupt for a text
        that is not ours.
        """
        if offset < 0:
            return None
        if not text:
            return cls(ledger, Place(offset))
        try:
            fields = json.loads(text)
            found = cls(str(fields["ledger"]), Place.from_json(fields["place"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Corrupt("the text of a group's offset is no place of published outputs", text=text[:200]) from None
        return found if found.ledger == ledger else None
