"""`Witnesses`: what the writers of chunks have seen of the ledger; `check_ledger`, the one comparison of all doors.

A writer names in every chunk how far it had folded the ledger, and which record it found there. A ledger that ends
below such a place, or has another record there, has lost what was acknowledged, however far it has grown again. The
chunks that can say so are those that no commit lists: whatever is listed lies below a commit that is there.

Invariants:
- Every record from a partition's committed position to its end is looked at, in every partition: whatever lies behind
  a witness, be it a stranger's, hides nothing.
- A record is read once in the life of a `Log`, however often it is asked.
- Nothing up to the newest Restart counts: a person has settled it.
- A chunk whose seal is not the log's says nothing, nor does a record that is no chunk.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from statelog.errors import BeyondEnd, Corrupt, OffsetGone, UnknownFormat
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.place import Place
from statelog.storage.kafka import Kafka, OffsetRange
from statelog.storage.kafka.errors import read_past
from statelog.storage.ledger_client import STALL_TIMEOUT_S, LedgerClient

if TYPE_CHECKING:
    from statelog.storage.log.log import Log

__all__ = ["Witnesses", "check_ledger", "furthest_witness"]


class _Tail(NamedTuple):
    """What was read of a partition: up to `end`, and the places that its chunks name."""

    end: int
    places: frozenset[Place]


class Witnesses:
    """The places that uncommitted chunks of one topic name, sealed with `key`. Reads what is new, and nothing twice."""

    def __init__(self, kafka: Kafka, topic: str, key: bytes) -> None:
        self._kafka = kafka
        self._topic = topic
        self._key = key
        self._tails: Mapping[int, _Tail] = {}

    def behind(self, fold: LedgerFold, there: Mapping[int, OffsetRange]) -> set[Place]:
        """The places named behind the committed positions of a fold, up to the log ends in `there`.

        Raises Unavailable.
        """
        while True:
            known = {
                p: self._known(p, max(held.start, fold.committed_position(p)), held.end) for p, held in there.items()
            }
            try:
                found = self._read(known, there)
            except OffsetGone:
                there = self._kafka.offsets(self._topic, sorted(there))  # Truncated since it was asked.
                continue
            self._tails = {**self._tails, **found}  # Replaced as a whole: others may ask at the same time.
            return {place for tail in found.values() for place in tail.places}

    def _known(self, partition: int, start: int, end: int) -> _Tail:
        """What was read of the records from `start` on, in a log that ends at `end`."""
        known = self._tails.get(partition)
        return known if known is not None and start <= known.end <= end else _Tail(start, frozenset())

    def _read(self, known: Mapping[int, _Tail], there: Mapping[int, OffsetRange]) -> dict[int, _Tail]:
        """All that is known once the rest was read."""
        wanted = {p: OffsetRange(tail.end, there[p].end) for p, tail in known.items() if tail.end < there[p].end}
        named: dict[int, set[Place]] = {p: set(tail.places) for p, tail in known.items()}
        if wanted:
            with closing(self._kafka.reader(self._topic)) as reader:
                for record in read_past(reader, wanted, stall_timeout_s=STALL_TIMEOUT_S, counts=_never):
                    place = self._named(record.value)
                    if place is not None:
                        named[record.partition].add(place)
        return {p: _Tail(max(tail.end, there[p].end), frozenset(named[p])) for p, tail in known.items()}

    def _named(self, value: bytes) -> Place | None:
        """The place that a record names; None if it is no chunk of somebody who knows the log's descriptor."""
        try:
            found = decode_head(value)
        except (Corrupt, UnknownFormat):
            return None
        return found[0].place if found and found[0].is_sealed(self._key) else None


def _never(_partition: int, _offsets: OffsetRange) -> bool:
    """What no commit lists and cannot be unpacked is no chunk."""
    return False


def furthest_witness(log: "Log", fold: LedgerFold) -> int:
    """The highest position that a chunk behind the committed positions of a fold names; 0 if none does."""
    return max((place.position for place in log.witnesses.behind(fold, log.data_offsets())), default=0)


def check_ledger(
    log: "Log", ledger: LedgerClient, *, places: Iterable[Place] = (), there: Mapping[int, OffsetRange] | None = None
) -> None:
    """Whether the ledger, folded to its end, is the one that was seen before: by this process (`Log.place`), by whoever
    remembers one of `places`, and by the writers of all chunks that no commit lists. `there` are log start and log end
    of every data partition, if the caller has just asked for them.

    Raises BeyondEnd, AnchorMismatch, Unavailable.
    """
    fold = ledger.fold
    named = log.witnesses.behind(fold, there or log.data_offsets())
    open_to_doubt = {place for place in named if max(place.position - 1, place.last_offset) > fold.restarted}
    seen = {log.place, *places, *open_to_doubt}
    furthest = max(place.position for place in seen)
    if furthest > fold.position and (end := log.ledger.end(at_least=furthest)) < furthest:
        raise BeyondEnd(
            "the ledger ends below what was seen of it",
            topic=log.ledger_topic,
            log_end=end,
            position=furthest,
            hint="It lost commits that were acknowledged: restore the topic, or accept the loss by name",
        )
    ledger.check(seen)
    log.saw(ledger.place)
