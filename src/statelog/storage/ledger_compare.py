"""Reading a ledger again, to compare what is remembered of it with what is there. A person may have given that up.

Never decides what a difference means; and reads only what it is told to, once.
"""

from collections.abc import Iterable, Iterator

from statelog.errors import AnchorMismatch
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import Restart, decode
from statelog.storage.kafka import STALL_TIMEOUT_S, OffsetRange, Reader, Record


def near_ones(places: Iterable[Place], most_apart: int) -> Iterator[list[Place]]:
    """Places with a record, in piles that one read takes: each ascending, no record farther than that from the next
    one; the newest pile first.
    """
    pile: list[Place] = []
    for place in sorted(places, key=lambda one: one.last_offset, reverse=True):
        if pile and pile[-1].last_offset - place.last_offset > most_apart:
            yield pile[::-1]
            pile = []
        pile.append(place)
    if pile:
        yield pile[::-1]


def parted(records: Iterator[Record], position: int) -> tuple[set[LastRecord], Record | None]:
    """What stands below a position, and the first record that does not, if there is one. Raises OffsetGone."""
    below = set[LastRecord]()
    for one in records:
        if one.offset >= position:
            return below, one
        below.add(LastRecord.of(one.offset, one.value))
    return below, None


def mismatch(topic: str, last: LastRecord, *, position: int) -> AnchorMismatch:
    """The error for a record that is gone, or not the one that was remembered, of a ledger that was folded so far."""
    return AnchorMismatch(
        "a ledger record is not the one that was read there before",
        topic=topic,
        offset=last.offset,
        position=position,
        hint="The ledger was made anew, restored, or lost its tail and grew again: restore the topic",
    )


def is_restarted(reader: Reader, end_position: int, offset: int) -> bool:
    """Whether a person accepted that the ledger lost what stood at `offset`. Raises Damaged, BrokerUnavailable."""
    records = reader.read({0: OffsetRange(offset + 1, end_position)}, stall_timeout_s=STALL_TIMEOUT_S)
    restarts = (record for found in records if isinstance(record := decode(found.value), Restart))
    return any(record.position > offset for record in restarts)
