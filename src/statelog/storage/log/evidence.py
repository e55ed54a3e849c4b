"""Evidence that a log's topics are those that were seen before: anchors of a snapshot, witnesses in chunks,
and looks at who answers.

Anchors are hashes of the records that a snapshot was built on, compared by every later reader. They notice a topic that
was restored, rewound or re-filled behind an unchanged id: offsets would still look right.

Witnesses: a writer names in every chunk how far it had folded the ledger, and which record it found there. A ledger
that ends below such a place, or has another record there, has lost what was acknowledged, however far it has grown
again. The chunks that can say so are those that no commit lists: whatever is listed lies below a commit that is there.

Looks ask whether the cluster still is the one of the log: seldom, one thread for all. How old an answer may be is the
asker's to say, and it is as old as its question.

Invariants:
- A record that is gone by truncation proves nothing, in either direction. One that is there must be the same, and so
  must the one below a place that a snapshot is kept of.
- Offsets whose loss a person accepted carry no anchor, and nothing up to the newest Restart counts.
- Every record from a partition's committed position to its end is looked at, in every partition: whatever lies behind
  a witness, be it a stranger's, hides nothing. It is read once in the life of a `Log`, however often it is asked.
- A chunk whose seal is not the log's says nothing, nor does a record that is no chunk.
- A look that is "anew" is asked after the call for it, whatever others have asked meanwhile. No lock is waited for
  longer than an answer is good for: a fork may have copied one that nobody releases.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from statelog.environment import Start
from statelog.errors import Corrupt, IdentityChanged, NotFound, OffsetGone, StatelogError, Unavailable, UnknownFormat
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.changes.replay_plan import another_record
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.place import ORIGIN, LastRecord, Place
from statelog.schemas.ledger.records import LossRange, given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Anchor, Manifest
from statelog.schemas.topic_policy import Truncation
from statelog.storage.kafka import STALL_TIMEOUT_S, Kafka, OffsetRange
from statelog.storage.kafka.errors import read_past
from statelog.storage.ledger_client import LOOK_AGAIN_S, LedgerClient
from statelog.storage.ledger_compare import is_restarted
from statelog.storage.log.ledger import check_reaches, records_at
from statelog.storage.log.topics import IdentifiedTopics

if TYPE_CHECKING:
    from statelog.storage.log.log import Log


def take_anchors(
    log: "Log", state: LedgerState, previous: Manifest | None, read: Mapping[int, LastRecord] | None = None
) -> tuple[Anchor, ...]:
    """The last record below the ledger position and below each committed position.

    The anchor of what did not move is taken over, and so are the last records that were just `read` of data partitions.
    Raises OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    known = {a.partition: a for a in previous.anchors if a.topic == "data"} if previous else {}
    known |= {partition: Anchor("data", partition, *found) for partition, found in (read or {}).items()}
    last = {p: end - 1 for p, end in state.committed_positions.items() if not given_up(state.accepted, p, end - 1, end)}
    held = {p: known[p] for p, offset in last.items() if p in known and known[p].offset == offset}
    moved = {p: offset for p, offset in last.items() if p not in held}
    data = {p: Anchor("data", p, moved[p], value) for p, value in _hashes(log, log.data_topic, moved).items()}
    at = {0: state.position - 1} if state.position else {}
    same = [a for a in previous.anchors if a.topic == "ledger" and a.offset == at.get(0)] if previous else []
    ledger = same or [Anchor("ledger", p, at[p], value) for p, value in _hashes(log, log.ledger_topic, at).items()]
    return (*(anchor for _, anchor in sorted((held | data).items())), *ledger)


def check_anchors(
    log: "Log",
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
            break
        except OffsetGone:
            there = None  # Truncated since it was asked, by a round that won; every turn here follows a higher start.
    for partition, offset in held.items():
        is_same = found.get(partition) == expected[partition].hash
        if not (is_same or (topic == log.ledger_topic and _is_restarted(log, offset))):
            raise another_record(topic, partition, offset)


def check_data_anchors(
    log: "Log",
    newest: Manifest | None,
    partitions: Collection[int],
    accepted: tuple[LossRange, ...],
    there: Mapping[int, OffsetRange],
) -> None:
    """As `check_anchors`, for those that a snapshot has of these data partitions; None: there is no snapshot."""
    anchors = newest.anchors if newest else ()
    data = [one for one in anchors if one.topic == "data" and one.partition in partitions]
    check_anchors(log, data, accepted, there)


def _is_restarted(log: "Log", offset: int) -> bool:
    with closing(log.kafka.reader(log.ledger_topic)) as reader:
        return is_restarted(reader, log.ledger.end(), offset)


def _hashes(log: "Log", topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """The hash of one record of each partition; a partition is absent if there is no record at the offset."""
    found = records_at(log.kafka, topic, offsets) if offsets else {}
    return {partition: xxhash.xxh3_64_intdigest(record.value) for partition, record in found.items()}


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
            known = {p: self._known(p, max(at.start, fold.committed_position(p)), at.end) for p, at in there.items()}
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
                # What no commit lists and cannot be unpacked is no chunk.
                for record in read_past(
                    reader, wanted, stall_timeout_s=STALL_TIMEOUT_S, counts=lambda _partition, _at: False
                ):
                    place = self._named(record.value)
                    if place is not None:
                        named[record.partition].add(place)
        return {p: _Tail(max(tail.end, there[p].end), frozenset(named[p])) for p, tail in known.items()}

    def _named(self, value: bytes) -> Place | None:
        """The place that a record names; None unless it is a chunk of a writer that knows the log's descriptor."""
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
    lost, known = log.ledger_tape.lost, log.places
    seen = {*places, *_open_to_doubt(fold, known | named)}
    furthest = max((place.position for place in seen), default=0)
    if furthest > fold.position:
        check_reaches(log.name, log.ledger.end(at_least=furthest), furthest)
    ledger.check(seen)
    for place in places:
        fold.check_followed(place.position)
    _settle_read(log, ledger, known, lost)


def _open_to_doubt(fold: LedgerFold, places: Iterable[Place]) -> set[Place]:
    """Those of what somebody saw that no Restart lies above. What one does lie above was there before it or was gone:
    and a person said then what counts.
    """
    return {place for place in places if max(place.position - 1, place.last_offset) > fold.restarted}


def settle(log: "Log", place: Place, compared: Collection[Place], lost: Collection[LastRecord]) -> None:
    """The log may note a place of a ledger in which all of these are there, or were given up, with what was `lost`."""
    log.saw(place, compared)
    log.ledger_tape.settle(one.last for one in compared if one.last in lost)


def _settle_read(log: "Log", ledger: LedgerClient, known: Iterable[Place], lost: Collection[LastRecord]) -> None:
    """All of these were compared. What the client has by a look of others stays known until one of them has read it."""
    settle(log, ledger.place, {one for one in known if one.last_offset < ledger.compared_position}, lost)


def read_on(log: "Log", ledger: LedgerClient, seen: Place = ORIGIN) -> None:
    """Fold the ledger to its end now, which has what this process saw of it, and what another one did (`seen`). As
    `check_ledger`, but the data topic is not read: for who did that under the epoch that it goes on with.

    Raises BeyondEnd, AnchorMismatch, IdentityChanged, Unavailable.
    """
    lost, known = log.ledger_tape.lost, log.places
    furthest = max(ledger.position, seen.position, *(place.position for place in known))
    with log.asking_who_answers():
        end = log.ledger.end()
        if end < furthest:
            with suppress(Unavailable):
                log.ledger.identify(anew=True)  # A log that was made anew is told at once.
            end = log.ledger.end(at_least=furthest)
        check_reaches(log.name, end, furthest)
        ledger.fold_end(end)
        known |= log.places  # What is read is compared with what others of this process read or were told.
        ledger.check({seen, *_open_to_doubt(ledger.fold, known)})
    _settle_read(log, ledger, {seen, *known}, lost)


# ---- who answers


class Verified(NamedTuple):
    """What the cluster said of a log's topics, which are the descriptor's, and when it was asked; and who truncates
    them, once it was seen that they may be used. The store is only asked where they keep nothing for ever.
    """

    topics: IdentifiedTopics
    asked_s: float
    truncation: Truncation | None = None


class Looks:
    """The newest answer to `identify`. Thread-safe. `judge` is shown each answer that was asked for ahead."""

    def __init__(
        self,
        identify: Callable[[], IdentifiedTopics],
        clock: Callable[[], float],
        judge: Callable[[Verified], object] = lambda _: None,
    ) -> None:
        self._identify = identify
        self._clock = clock
        self._judge = judge
        self._asking = Lock()
        self.newest: Verified | None = None

    def verified(self, max_age_s: float | None) -> Verified:
        """An answer whose question is no older; None: it comes after this call.

        Raises NotFound, IdentityChanged, Corrupt, UnknownFormat, Unavailable.
        """
        found = self._within(max_age_s)
        if found is not None:
            return found
        is_held = self._asking.acquire(timeout=LOOK_AGAIN_S)
        try:
            return self._within(max_age_s) or self._ask()  # Another thread may have asked for all.
        finally:
            if is_held:
                self._asking.release()

    def ahead(self, max_age_s: float, start: Start) -> None:
        """Ask beside what follows, by `start`, if the answer is half as old as it may become: who needs one meanwhile
        waits for this one.
        """
        if self._within(max_age_s / 2) is None and self._asking.acquire(blocking=False):
            try:
                start(self._ask_quietly)
            except RuntimeError:  # There is no room for a thread: who needs an answer asks.
                self._asking.release()

    def _ask_quietly(self) -> None:
        found: Verified | None = None
        try:
            with suppress(StatelogError):  # Who needs an answer asks again, and is told.
                found = self._ask()
        finally:
            self._asking.release()
        if found is not None:
            self._judge(found)

    def _ask(self) -> Verified:
        asked_s = self._clock()
        try:
            self.newest = found = Verified(self._identify(), asked_s)
        except (NotFound, IdentityChanged):
            self.newest = None  # What was answered before is true no more, whoever hears of it.
            raise
        return found

    def _within(self, max_age_s: float | None) -> Verified | None:
        found = self.newest
        is_young = found is not None and max_age_s is not None and self._clock() - found.asked_s < max_age_s
        return found if is_young else None
