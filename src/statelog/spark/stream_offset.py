"""`StreamOffset`: how far a stream has read, as JSON in Spark's checkpoint: docs/format-stream-offset.md. Pure.

Invariants:
- It carries the log's identity, so the offsets of a recreated topic, or of another log, are refused.
- It carries where its reading began: Spark asks for the start again if it dies in the first micro-batch, and would get
  another one.
- It carries the ledger record below its position: a ledger that lost it, and grew again, is another history.
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

    `reading` is the id of the reading, made where it began. All commits below `place` were read. `awaits_state`: the
    state there comes next, before any change. `is_reset`: what was read before does not count, because the micro-batch
    that ends here begins with a reset marker and the state at `place`. `begin_place` and `begin_awaits_state` say where
    the reading began.
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
        """Where a reading begins."""
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
        """Where the reading began."""
        return self.initial(self.identity, self.reading, self.begin_place, awaits_state=self.begin_awaits_state)

    def to_json(self) -> dict[str, object]:
        """As Spark keeps it."""
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
    def from_json(cls, kept: object, identity: LogIdentity) -> "StreamOffset":
        """From what Spark kept, for the log with this identity. Raises UnknownFormat, Corrupt, IdentityChanged."""
        found = cast("Mapping[str, Any]", kept if isinstance(kept, Mapping) else {})
        version = found.get("version")
        if type(version) is not int or version < 1:
            raise Corrupt(
                "the offset in the query's checkpoint is none of statelog's",
                keys=", ".join(sorted(found)),
                hint="It is that of another source: give this query a checkpoint of its own",
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
    """An offset of version 1, which has positions without the record below them, in the words of version 2."""
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
    """Where the micro-batch that ends at `end` begins.

    A reset begins where it ends. A start of another reading than the end's was made anew after a death in the first
    micro-batch: that one begins where its own reading began.
    """
    if end.is_reset and end.reading != start.reading:
        return end
    return start if start.reading == end.reading else end.begin


def is_reset(start: StreamOffset, end: StreamOffset) -> bool:
    """Whether the micro-batch between them begins with a reset marker."""
    return end.is_reset and batch_start(start, end) == end
