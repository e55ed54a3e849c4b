"""Anchors: hashes of the records that a snapshot was built on, compared by every later reader.

They notice a topic that was restored, rewound or re-filled behind an unchanged id: offsets would still look right.

Invariants:
- A record that is gone by truncation proves nothing, in either direction. One that is there must be the same.
- Offsets whose loss a person accepted carry no anchor.
"""

from collections.abc import Collection, Iterable, Mapping

import xxhash

from statelog.errors import AnchorMismatch, OffsetGone
from statelog.schemas.ledger.records import LossRange, given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Anchor, Manifest
from statelog.storage.kafka import OffsetRange, Reader
from statelog.storage.ledger_client import STALL_TIMEOUT_S, is_restarted
from statelog.storage.log.log import Log

__all__ = ["check_anchors", "check_data_anchors", "take_anchors"]


def take_anchors(log: Log, state: LedgerState, previous: Manifest | None) -> tuple[Anchor, ...]:
    """The last record below the ledger position and below each committed position.

    The anchor of a partition that did not move is taken over. Raises OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    known = {a.partition: a for a in previous.anchors if a.topic == "data"} if previous else {}
    last = {p: end - 1 for p, end in state.committed_positions.items() if not given_up(state.accepted, p, end - 1, end)}
    held = {p: known[p] for p, offset in last.items() if p in known and known[p].offset == offset}
    moved = {p: offset for p, offset in last.items() if p not in held}
    data = {p: Anchor("data", p, moved[p], value) for p, value in _hashes(log, log.data_topic, moved).items()}
    at = {0: state.position - 1} if state.position else {}
    ledger = [Anchor("ledger", p, at[p], value) for p, value in _hashes(log, log.ledger_topic, at).items()]
    return (*(anchor for _, anchor in sorted((held | data).items())), *ledger)


def check_anchors(
    log: Log,
    anchors: Iterable[Anchor],
    accepted: tuple[LossRange, ...] = (),
    there: Mapping[int, OffsetRange] | None = None,
) -> None:
    """Compare those anchors of one topic whose records are still there with what is there now.

    `there` are log start and log end of the partitions, if the caller has just asked for them. Raises AnchorMismatch,
    BeyondEnd, BrokerUnavailable.
    """
    expected = {
        a.partition: a
        for a in anchors
        if a.topic == "ledger" or not given_up(accepted, a.partition, a.offset, a.offset + 1)
    }
    if not expected:
        return
    topic = log.data_topic if next(iter(expected.values())).topic == "data" else log.ledger_topic
    while True:
        there = there or log.kafka.offsets(topic, sorted(expected))
        held = {p: anchor.offset for p, anchor in expected.items() if anchor.offset >= there[p].start}
        try:
            found = _hashes(log, topic, held)
        except OffsetGone:
            there = None  # Truncated since it was asked, by a round that won; every turn here follows a higher start.
            continue
        break
    for partition, offset in held.items():
        if found.get(partition) != expected[partition].hash and not (
            topic == log.ledger_topic and _is_restarted(log, offset)
        ):
            raise _mismatch(topic, partition, offset)


def check_data_anchors(
    log: Log,
    newest: Manifest | None,
    partitions: Collection[int],
    accepted: tuple[LossRange, ...],
    there: Mapping[int, OffsetRange],
) -> None:
    """As `check_anchors`, for those that a snapshot has of these data partitions; None: there is no snapshot."""
    anchors = newest.anchors if newest else ()
    data = [one for one in anchors if one.topic == "data" and one.partition in partitions]
    check_anchors(log, data, accepted, there)


def _is_restarted(log: Log, offset: int) -> bool:
    reader = log.kafka.reader(log.ledger_topic)
    try:
        return is_restarted(reader, log.ledger.end(), offset)
    finally:
        reader.close()


def _mismatch(topic: str, partition: int, offset: int) -> AnchorMismatch:
    return AnchorMismatch(
        "a record is not the one that the newest snapshot was built on",
        topic=topic,
        partition=partition,
        offset=offset,
        hint="The topic was restored, or lost its tail and grew again: restore it, or accept the loss by name",
    )


def _values(reader: Reader, offsets: Mapping[int, int]) -> dict[int, bytes]:
    """One record of each partition; a partition is absent if there is no record at the offset."""
    ranges = {partition: OffsetRange(offset, offset + 1) for partition, offset in offsets.items()}
    return {record.partition: record.value for record in reader.read(ranges, stall_timeout_s=STALL_TIMEOUT_S)}


def _hashes(log: Log, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """The hash of one record of each partition; a partition is absent if there is no record at the offset."""
    if not offsets:
        return {}
    reader = log.kafka.reader(topic)
    try:
        return {p: xxhash.xxh3_64_intdigest(value) for p, value in _values(reader, offsets).items()}
    finally:
        reader.close()
