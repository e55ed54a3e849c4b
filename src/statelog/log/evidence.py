"""Evidence that a log's topics are the observed ones: anchors of a snapshot, and witnesses in chunks.

Anchors are hashes of the records on which a snapshot was built; every later reader compares them. They detect a topic
that was restored, rewound or re-filled under an unchanged id, where offsets would still look right.

Witnesses: a writer names in every chunk the place up to which it had folded the ledger. A ledger that ends below such a
place, or has another record there, has lost acknowledged records, however far it has grown again. Only chunks that no
commit lists can show that: a listed chunk lies below a commit that is there.

Invariants:
- A truncated record proves nothing, in either direction. An existing record must be the same, and so must the record
  below a place of which a snapshot is retained.
- Offsets whose loss a person accepted carry no anchor, and nothing up to the newest Restart counts.
- Only the last records of every partition behind its committed position are read, so that opening under a load of any
  size reads little. More foreign records than that behind a witness hide it.
- A chunk without the log's seal, or a record that is no chunk, is no witness.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing

import xxhash

from statelog.errors import Corrupt, OffsetGone, UnknownFormat
from statelog.history import History, LedgerSource, LedgerView, records_at
from statelog.kafka.errors import read_past
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.changes.replay_plan import another_record
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import ORIGIN, LastRecord, Place
from statelog.schemas.ledger.records import LossRange, is_forfeited
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import data_topic
from statelog.schemas.outputs.chunk import decode_output_head
from statelog.schemas.snapshot.manifest import Anchor, Manifest

_WITNESS_RECORDS = 4
"""So many of the last records of a partition are read for witnesses."""


class Evidence:
    """The checks that a log's topics are the observed ones. Belongs to a log, and closes nothing."""

    def __init__(self, descriptor: Descriptor, ledger: LedgerSource, history: History) -> None:
        self._descriptor = descriptor
        self._ledger = ledger
        self._history = history
        self._kafka = ledger.kafka
        self._data_topic = data_topic(descriptor.name)

    def check_ledger(
        self,
        *,
        places: Collection[Place] = (),
        there: Mapping[int, OffsetRange] | None = None,
        end: int | None = None,
        since_s: float | None = None,
    ) -> LedgerView:
        """Read the ledger to its end, and return it. Compare it with the records that this process has read, with
        `places` that others observed, and with the witnesses in the last chunks.

        there         log start and log end of every data partition, if the caller has just asked for them
        end, since_s  likewise the ledger's end, and when it was asked for, in the history's time

        Raises BeyondEnd, AnchorMismatch, OffsetGone, Unavailable.
        """
        history = self._history
        if end is None:
            history.read(max(places, default=ORIGIN, key=lambda one: one.position))
        else:
            history.read_to(end, since_s)
        history.expect(places)
        view = history.view()
        self.check_witnesses(
            view.state, there or self._kafka.offsets(self._data_topic, range(self._descriptor.partitions))
        )
        return view

    def take_anchors(
        self, state: LedgerState, previous: Manifest | None, read: Mapping[int, LastRecord] | None = None
    ) -> tuple[Anchor, ...]:
        """Return anchors of the last record below the ledger position and below each committed position.

        Takes the `previous` anchors of unchanged positions, and the last records of data partitions that were just
        `read`. Raises OffsetGone, BeyondEnd, BrokerUnavailable.
        """
        known = {a.partition: a for a in previous.anchors if a.topic == "data"} if previous else {}
        known |= {partition: Anchor("data", partition, *found) for partition, found in (read or {}).items()}
        last = {
            p: end - 1
            for p, end in state.committed_positions.items()
            if not is_forfeited(state.accepted, p, end - 1, end)
        }
        held = {p: known[p] for p, offset in last.items() if p in known and known[p].offset == offset}
        moved = {p: offset for p, offset in last.items() if p not in held}
        data = {p: Anchor("data", p, moved[p], value) for p, value in self._hashes(self._data_topic, moved).items()}
        at = {0: state.position - 1} if state.position else {}
        same = [a for a in previous.anchors if a.topic == "ledger" and a.offset == at.get(0)] if previous else []
        ledger = same or [
            Anchor("ledger", p, at[p], value) for p, value in self._hashes(self._ledger.topic, at).items()
        ]
        return (*(anchor for _, anchor in sorted((held | data).items())), *ledger)

    def check_anchors(
        self,
        anchors: Iterable[Anchor],
        accepted: tuple[LossRange, ...] = (),
        there: Mapping[int, OffsetRange] | None = None,
    ) -> None:
        """Compare anchors of one topic with the records there now. Skip those whose records were truncated.

        `there`: log start and log end of the partitions, if the caller has just asked for them. Raises AnchorMismatch,
        BeyondEnd, BrokerUnavailable.
        """
        expected = {
            a.partition: a
            for a in anchors
            if a.topic == "ledger" or not is_forfeited(accepted, a.partition, a.offset, a.offset + 1)
        }
        if not expected:
            return
        topic = self._data_topic if next(iter(expected.values())).topic == "data" else self._ledger.topic
        while True:
            there = there or self._kafka.offsets(topic, sorted(expected))
            held = {p: anchor.offset for p, anchor in expected.items() if anchor.offset >= there[p].start}
            try:
                found = self._hashes(topic, held)
                break
            except OffsetGone:
                there = None  # Truncated meanwhile: each retry follows a higher start.
        for partition, offset in held.items():
            is_same = found.get(partition) == expected[partition].hash
            if not (is_same or (topic == self._ledger.topic and self._ledger.is_forfeited(offset))):
                raise another_record(topic, partition, offset)

    def check_data_anchors(
        self,
        newest: Manifest | None,
        partitions: Collection[int],
        accepted: tuple[LossRange, ...],
        there: Mapping[int, OffsetRange],
    ) -> None:
        """Check the anchors that the newest snapshot, if there is one, has of these data partitions."""
        anchors = newest.anchors if newest else ()
        data = [one for one in anchors if one.topic == "data" and one.partition in partitions]
        self.check_anchors(data, accepted, there)

    def check_witnesses(self, state: LedgerState, there: Mapping[int, OffsetRange]) -> None:
        """Compare the ledger, read up to a state, with the witnesses in the last chunks that lie above the newest
        Restart. Raises BeyondEnd, AnchorMismatch, Unavailable.
        """
        named = self.witnesses(state, there)
        self._history.expect(one for one in named if max(one.position - 1, one.last_offset) > state.restarted)

    def witnesses(self, state: LedgerState, there: Mapping[int, OffsetRange]) -> set[Place]:
        """Read the places that the last records behind the committed positions name. Raises Unavailable."""
        while True:
            wanted = {p: OffsetRange(_first_witness(state, p, at), at.end) for p, at in there.items()}
            wanted = {p: one for p, one in wanted.items() if one.start < one.end}
            if not wanted:
                return set()
            try:
                with closing(self._kafka.reader(self._data_topic)) as reader:
                    records = read_past(reader, wanted, stall_timeout_s=STALL_TIMEOUT_S, counts=_is_no_chunk)
                    named = (_named(one.value, self._descriptor.seal_key) for one in records)
                    return {place for place in named if place is not None}
            except OffsetGone:
                there = self._kafka.offsets(self._data_topic, sorted(there))  # Truncated meanwhile.

    def _hashes(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the hash of one record of each partition, without partitions that have none at the offset."""
        found = records_at(self._kafka, topic, offsets) if offsets else {}
        return {partition: xxhash.xxh3_64_intdigest(record.value) for partition, record in found.items()}


def _is_no_chunk(_partition: int, _at: OffsetRange) -> bool:
    return False  # A record that cannot be unpacked, and that no commit lists, is no chunk.


def _first_witness(state: LedgerState, partition: int, there: OffsetRange) -> int:
    return max(there.start, state.committed_positions.get(partition, 0), there.end - _WITNESS_RECORDS)


def _named(value: bytes, key: bytes) -> Place | None:
    """Return the place that a record names; None unless it is a chunk, also of messages, with the log's seal."""
    try:
        found = decode_head(value) or decode_output_head(value)
    except (Corrupt, UnknownFormat):
        return None
    return found[0].place if found and found[0].is_sealed(key) else None
