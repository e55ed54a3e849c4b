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
        self._tails: dict[int, _Tail] = {}

    def behind(self, fold: LedgerFold, there: Mapping[int, OffsetRange]) -> set[Place]:
        """The places named behind the committed positions of a fold, up to the log ends in `there`.

        Raises Unavailable.
        """
        for partition, held in there.items():
            known = self._tails.get(partition)
            if known is not None and not fold.committed_position(partition) < known.end <= held.end:
                del self._tails[partition]
        while True:
            wanted = {p: self._unread(p, fold, held) for p, held in there.items()}
            wanted = {p: unread for p, unread in wanted.items() if unread.start < unread.end}
            try:
                self._read(wanted)
            except OffsetGone:
                there = self._kafka.offsets(self._topic, sorted(there))  # Truncated since it was asked.
                continue
            return {place for p in there if p in self._tails for place in self._tails[p].places}

    def _unread(self, partition: int, fold: LedgerFold, there: OffsetRange) -> OffsetRange:
        known = self._tails.get(partition)
        start = max(there.start, fold.committed_position(partition), known.end if known else 0)
        return OffsetRange(start, max(start, there.end))

    def _read(self, wanted: Mapping[int, OffsetRange]) -> None:
        if not wanted:
            return
        found: dict[int, set[Place]] = {partition: set() for partition in wanted}
        with closing(self._kafka.reader(self._topic)) as reader:
            for record in reader.read(wanted, stall_timeout_s=STALL_TIMEOUT_S):
                place = self._named(record.value)
                if place is not None:
                    found[record.partition].add(place)
        for partition, (_, end) in wanted.items():
            known = self._tails.get(partition)
            self._tails[partition] = _Tail(end, frozenset(found[partition] | (known.places if known else set())))

    def _named(self, value: bytes) -> Place | None:
        """The place that a record names; None if it is no chunk of somebody who knows the log's descriptor."""
        try:
            found = decode_head(value)
        except (Corrupt, UnknownFormat):
            return None
        return found[0].place if found and found[0].is_sealed(self._key) else None


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
