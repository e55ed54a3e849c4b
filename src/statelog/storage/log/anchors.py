"""Anchors: hashes of the records that a snapshot was built on, compared by every later reader.

They notice a topic that was restored, rewound or re-filled behind an unchanged id: offsets would still look right.
The last record of each data partition is looked at beside them: it bears witness of how far the ledger once reached.

Invariants:
- A record that is gone by truncation proves nothing, in either direction. One that is there must be the same.
- Offsets whose loss a person accepted carry no anchor.
"""

from collections.abc import Iterable, Mapping, Sequence

import xxhash

from statelog.errors import AnchorMismatch, BeyondEnd, Corrupt, OffsetGone, UnknownFormat
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.ledger.records import LossRange, given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Anchor, Manifest
from statelog.storage.kafka import OffsetRange, Reader
from statelog.storage.ledger_client import STALL_TIMEOUT_S, is_restarted
from statelog.storage.log.log import Log

__all__ = ["check_anchors", "check_data_records", "newest_witness", "take_anchors"]


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


def check_anchors(log: Log, anchors: Iterable[Anchor], accepted: tuple[LossRange, ...] = ()) -> None:
    """Compare those anchors of one topic whose records are still there with what is there now.

    Raises AnchorMismatch, BeyondEnd, BrokerUnavailable.
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
        starts = log.kafka.offsets(topic, sorted(expected))
        there = {p: anchor.offset for p, anchor in expected.items() if anchor.offset >= starts[p].start}
        try:
            found = _hashes(log, topic, there)
        except OffsetGone:
            # Truncated since we asked, by a materializer that won; every turn here follows a higher log start.
            continue
        break
    for partition, offset in there.items():
        if found.get(partition) != expected[partition].hash and not (
            topic == log.ledger_topic and _is_restarted(log, offset)
        ):
            raise _mismatch(topic, partition, offset)


def check_data_records(
    log: Log,
    partitions: Sequence[int],
    anchors: Iterable[Anchor],
    accepted: tuple[LossRange, ...],
    end_position: int,
    there: Mapping[int, OffsetRange] | None = None,
) -> None:
    """Compare the data anchors of these partitions, and look at the last record of each: a chunk whose writer had seen
    the ledger further than it reaches proves that the ledger lost its tail. `end_position` was its end a moment ago,
    and `there` are log start and log end of the partitions, if the caller has just asked for them.

    Raises AnchorMismatch, BeyondEnd, BrokerUnavailable.
    """
    expected = {
        a.partition: a
        for a in anchors
        if a.topic == "data"
        and a.partition in partitions
        and not given_up(accepted, a.partition, a.offset, a.offset + 1)
    }
    last, found = _read_records(log, partitions, expected, there)
    for partition, anchor in expected.items():
        if partition in found and found[partition] != anchor.hash:
            raise _mismatch(log.data_topic, partition, anchor.offset)
    witness = _newest_witness(log, last)
    if witness > end_position and log.ledger.end(at_least=witness) < witness:
        raise BeyondEnd(
            "the ledger ends below what the writer of a chunk had seen of it",
            topic=log.ledger_topic,
            log_end=end_position,
            position=witness,
            hint="It lost commits that were acknowledged: restore the topic, or accept the loss by name",
        )


def newest_witness(log: Log) -> int:
    """The highest ledger position that the last records of the data partitions name; 0 if none does."""
    last, _ = _read_records(log, range(log.descriptor.partitions), {})
    return _newest_witness(log, last)


def _newest_witness(log: Log, last: Mapping[int, bytes]) -> int:
    return max((_witness(log, value) for value in last.values()), default=0)


def _read_records(
    log: Log,
    partitions: Sequence[int],
    anchors: Mapping[int, Anchor],
    there: Mapping[int, OffsetRange] | None = None,
) -> tuple[dict[int, bytes], dict[int, int | None]]:
    """The last record of each partition, and the hashes of the anchors' records where the log still reaches back."""
    topic = log.data_topic
    reader = log.kafka.reader(topic)
    try:
        while True:
            there = there or log.kafka.offsets(topic, sorted(partitions))
            ends = {p: there[p].end - 1 for p in partitions if there[p].end > there[p].start}
            kept = {p: one.offset for p, one in anchors.items() if one.offset >= there[p].start}
            try:
                last = _values(reader, ends)
                others = _values(reader, {p: offset for p, offset in kept.items() if ends.get(p) != offset})
            except OffsetGone:
                there = None  # Truncated since we asked; every turn here follows a higher log start.
                continue
            values = {p: last.get(p) if ends.get(p) == kept[p] else others.get(p) for p in kept}
            return last, {p: None if v is None else xxhash.xxh3_64_intdigest(v) for p, v in values.items()}
    finally:
        reader.close()


def _witness(log: Log, value: bytes) -> int:
    """The ledger position that a record names; 0 if it is no chunk of somebody who knows the log's descriptor."""
    try:
        found = decode_head(value)
    except (Corrupt, UnknownFormat):
        return 0
    return found[0].witness if found and found[0].is_sealed(log.descriptor.seal_key) else 0


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
