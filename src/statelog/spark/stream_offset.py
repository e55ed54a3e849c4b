"""`StreamOffset`: how far a stream has read, as JSON in Spark's checkpoint: docs/format-stream-offset.md. Pure.

Invariants:
- It has the log's identity, so the offsets of a re-created topic, or of another log, are refused.
- It has the start of its reading: Spark asks for the start again if it dies in the first micro-batch, and gets another.
- It has the ledger record below its position: a ledger that lost it, and grew again, is another history.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from statelog.errors import Corrupt, IdentityChanged, UnknownFormat
from statelog.schemas.ledger.place import LogIdentity, Place, shown_id

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A place in the changes of a log.

    reading             the id of the reading, made at its start
    place               all commits below it were read
    awaits_state        the state there comes next, before any change
    is_reset            the micro-batch that ends here begins with a reset marker and the state at `place`, and
                        replaces all rows before
    begin_place         where the reading began; so does `begin_awaits_state`
    """

    identity: LogIdentity
    reading: str
    place: Place
    awaits_state: bool
    is_reset: bool
    begin_place: Place
    begin_awaits_state: bool

    @classmethod
    def initial(cls, identity: LogIdentity, reading: str, place: Place, *, awaits_state: bool) -> "StreamOffset":
        """Return the offset where a reading begins."""
        return cls(
            identity=identity,
            reading=reading,
            place=place,
            awaits_state=awaits_state,
            is_reset=False,
            begin_place=place,
            begin_awaits_state=awaits_state,
        )

    @property
    def position(self) -> int:
        """The ledger position of the place."""
        return self.place.position

    @property
    def begin(self) -> "StreamOffset":
        """The offset where the reading began."""
        return self.initial(self.identity, self.reading, self.begin_place, awaits_state=self.begin_awaits_state)

    def to_json(self) -> dict[str, object]:
        """Return the JSON for Spark's checkpoint."""
        return {
            "version": FORMAT_VERSION,
            **{name: getattr(self.identity, field) for name, field in _IDENTITY.items()},
            "reading": self.reading,
            "place": self.place.to_json(),
            "awaitsState": self.awaits_state,
            "isReset": self.is_reset,
            "beginPlace": self.begin_place.to_json(),
            "beginAwaitsState": self.begin_awaits_state,
        }

    @classmethod
    def from_json(cls, stored: object, identity: LogIdentity) -> "StreamOffset":
        """Parse an offset of the log with this identity. Raises UnknownFormat, Corrupt, IdentityChanged."""
        found = cast("Mapping[str, Any]", stored if isinstance(stored, Mapping) else {})
        version = found.get("version")
        if type(version) is not int or version < 1:
            raise Corrupt(
                "the offset in the query's checkpoint is not statelog's",
                keys=", ".join(sorted(found)),
                hint="Give this query a checkpoint of its own: this one belongs to another source",
            )
        if version > FORMAT_VERSION:
            raise UnknownFormat("the query's checkpoint is of a newer statelog", found=version, known=FORMAT_VERSION)
        offset = _checked(_of_2(found) if version == 1 else found)
        if offset.identity != identity:
            raise IdentityChanged(
                "the query's checkpoint was made with another log, or with topics that this one had before",
                expected=shown_id(offset.identity.ledger_topic_id),
                found=shown_id(identity.ledger_topic_id),
                hint="Check the options log, root and kafka.bootstrap.servers; for another log, use another checkpoint",
            )
        return offset


_IDENTITY = {"clusterId": "cluster_id", "dataTopicId": "data_topic_id", "ledgerTopicId": "ledger_topic_id"}
_TYPES: Mapping[str, type] = {
    **dict.fromkeys((*_IDENTITY, "reading"), str),
    **dict.fromkeys(("place", "beginPlace"), list),
    **dict.fromkeys(("awaitsState", "isReset", "beginAwaitsState"), bool),
}


def _of_2(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the fields of an offset of version 1, which has positions without the record below them."""
    renamed = {"position": "place", "beginPosition": "beginPlace"}
    return {renamed.get(name, name): [value] if name in renamed else value for name, value in found.items()}


def _checked(found: Mapping[str, Any]) -> StreamOffset:
    wrong = [name for name, kind in _TYPES.items() if type(found.get(name)) is not kind]
    unknown = sorted(found.keys() - _TYPES.keys() - {"version"})
    if wrong or unknown:
        raise Corrupt("the offset in the query's checkpoint is damaged", fields=", ".join([*wrong, *unknown]))
    return StreamOffset(
        identity=LogIdentity(**{field: found[name] for name, field in _IDENTITY.items()}),
        reading=found["reading"],
        place=Place.from_json(found["place"]),
        awaits_state=found["awaitsState"],
        is_reset=found["isReset"],
        begin_place=Place.from_json(found["beginPlace"]),
        begin_awaits_state=found["beginAwaitsState"],
    )


def batch_start(start: StreamOffset, end: StreamOffset) -> StreamOffset:
    """Return where the micro-batch that ends at `end` begins.

    A reset begins where it ends. Spark asks for a start again after it died in the first micro-batch. Then `start` is
    of another reading than `end`, and the micro-batch begins where the reading of `end` began.
    """
    if end.is_reset and end.reading != start.reading:
        return end
    return start if start.reading == end.reading else end.begin


def is_reset(start: StreamOffset, end: StreamOffset) -> bool:
    """Return whether the micro-batch between them begins with a reset marker."""
    return end.is_reset and batch_start(start, end) == end
