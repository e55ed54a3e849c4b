"""`RetainedHistory`: the retained history of a log: its snapshots, its ledger, and the positions of states.

Changes can be read from a position on if two things are retained: a fold of the ledger at or below it, and everything
in the data topic that was committed after it.

Invariants:
- Manifests are listed before the ledger's end is looked up, so no listed snapshot can be above it.
- No end is believed that is below what the caller knows of. The same holds for what this process has read through this
  log, or got acknowledged.
- A snapshot that failed is never used again, and never passed over in silence.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, cached_property

from statelog.errors import (
    BrokerUnavailable,
    CorruptManifest,
    IdentityChanged,
    Misuse,
    NotFound,
    OffsetGone,
    StatelogError,
)
from statelog.history import check_reaches, records_at
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange, Record
from statelog.log import Log
from statelog.reading.plan import At, AtCheckpoint, AtPosition, AtTime, partitions_of
from statelog.schemas.ledger.fold import Folded, LedgerBase
from statelog.schemas.ledger.place import ORIGIN, LastRecord, Place
from statelog.schemas.ledger.records import is_forfeited
from statelog.schemas.snapshot.manifest import Manifest
from statelog.store.port import FileInfo

_LOG = logging.getLogger("statelog.recovery")
_HINT = (
    "Choose positions from the oldest to the newest (earliest: all retained changes); older changes are in the state"
    " only"
)
_CLOCKS_APART_S = 600
"""The most that the materializer's and the store's clock are assumed to be behind the brokers'."""


def place_at(log: Log, position: int) -> Place:
    """Return the place at a ledger position. It has the record below the position if the ledger still has that, or if a
    snapshot is of this very position. Raises BeyondEnd, Unreadable, Unavailable.
    """
    if position == 0:
        return ORIGIN
    with suppress(OffsetGone):
        found = records_at(log.kafka, log.ledger_topic, {0: position - 1}).get(0)
        if found is not None:
            return Place(position, LastRecord.of(found.offset, found.value))
    snapshot = log.manifests.at(position)
    return snapshot.place if snapshot else Place(position)


class RetainedHistory:
    """A log at one moment: `manifests`, newest first and at most `max_age_s` old, then the ledger's start and end.

    `base`: a fold that the caller has retained, for a start below all snapshots.
    `seen`: the places of the ledger that the caller remembers.

    Raises BeyondEnd if the ledger ends below a snapshot or an observed place, BrokerUnavailable.
    """

    def __init__(
        self,
        log: Log,
        key_groups: frozenset[int] | None,
        base: LedgerBase | None = None,
        *,
        seen: Collection[Place] = (),
        snapshots: "Snapshots | None" = None,
        max_age_s: float = 0.0,
    ) -> None:
        self._log = log
        self._partitions = partitions_of(key_groups, log.descriptor)
        self._base = base
        self.snapshots = snapshots or Snapshots(log)
        self.manifests = self.snapshots.listed(max_age_s=max_age_s)
        self.seen = [*seen, *([self.newest.place] if self.newest else [])]
        """The places that the ledger is compared with: the caller's, and the newest snapshot's."""
        self.asked_s = log.history.now_s()
        """When the ledger's end was looked up, by the time of its history."""
        self.ledger = self._ledger_range()

    @property
    def newest(self) -> Manifest | None:
        """The newest readable snapshot."""
        return next(iter(self.manifests), None)

    def snapshot_at(self, position: int) -> Manifest | None:
        """Return the newest snapshot at or below a position, None if there is none."""
        return next((one for one in self.manifests if one.position <= position), None)

    @property
    def holds_mark(self) -> bool:
        """Whether the ledger still has its first record, and the log began with it."""
        return self.ledger.start == 0 and self._log.descriptor.made_with is None and self._begins_at == 0

    @property
    def oldest_position(self) -> int:
        """The lowest position from which changes can be read. If there is none, the newest snapshot's: a reader
        that starts there gets an error that names what is missing.
        """
        if self._oldest is not None:
            return self._oldest
        if self.newest:
            return self.newest.position
        return 0 if self.holds_mark else self.ledger.end

    @property
    def misses_changes(self) -> bool:
        """Whether there is no position from which changes can be read, because committed changes are missing."""
        return self._oldest is None

    def base_for(self, start_position: int) -> LedgerBase | None:
        """Return the nearest fold at or below a position; None for the ledger's first record. Raises NotFound."""
        below = [base for base in self._bases() if base.state.position <= start_position]
        if below:
            return max(below, key=lambda base: base.state.position)
        if self.holds_mark:
            return None
        raise self.not_held(f"changes from position {start_position} on")

    def find(self, at: At) -> int | None:
        """Return the position of a state, None if the log does not have it. Raises Misuse if the log has no times."""
        match at:
            case AtPosition(position):
                return position if position <= self.ledger.end else None
            case AtCheckpoint():
                return self._find_checkpoint(at)
            case AtTime(timestamp_ms):
                found = self._first_since(timestamp_ms)
                if found == self.ledger.start and not self.holds_mark and not self._all_older(timestamp_ms):
                    return None  # Truncated records may be of that time, too, and must not be skipped.
                return found

    def resolve(self, at: At) -> int:
        """Return the position of a state, as `find`. Raises NotFound, too, if the log does not have it."""
        found = self.find(at)
        if found is None:
            raise self.not_held(str(at))
        return found

    def not_held(self, what: str) -> NotFound:
        """Make the error for changes or a state that the log does not have, with what it has."""
        return NotFound(
            f"the log {self._log.name} does not hold {what}",
            log=self._log.name,
            oldest_position=self.oldest_position,
            newest_position=self.ledger.end,
            hint=_HINT,
        )

    def no_state(self, at: object, hint: str) -> NotFound:
        """Make the error for a state that the log does not have, with those that it has."""
        positions = [one.position for one in self.manifests]
        return NotFound(
            f"the log {self._log.name} does not hold the state at {at}",
            log=self._log.name,
            oldest_position=0 if self.holds_mark else min(positions, default=self.ledger.end),
            newest_position=self.ledger.end,
            snapshots=len(positions),
            hint=hint,
        )

    def _ledger_range(self) -> OffsetRange:
        places = [self._log.place, *self.seen]
        known = max(place.position for place in places)
        found = self._log.ledger.range(at_least=known)
        check_reaches(self._log.name, found.end, max((one.position for one in places if one.last), default=0))
        if found.end < known:
            raise BrokerUnavailable(  # Not BeyondEnd: a position without its record may be a mistake.
                "Kafka shows an older end of the ledger than the caller knows of",
                topic=self._log.ledger_topic,
                log_end=found.end,
                position=known,
                hint="Check the position. If it came from a commit, try again, because an old leader may have answered;"
                " if the error stays, the ledger lost its tail",
            )
        return found

    # ---- where a fold may begin

    @cached_property
    def _oldest(self) -> int | None:
        if self._reaches_back(Folded()):
            return 0
        return min((base.state.position for base in self._bases() if self._reaches_back(base)), default=None)

    def _bases(self) -> list[LedgerBase]:
        """Return the folds from which the ledger can be read on, in no order."""
        given = [] if self._base is None else [self._base]
        start = max(self.ledger.start, self._begins_at)
        return [base for base in (*given, *self.manifests) if base.state.position >= start]

    def _reaches_back(self, base: LedgerBase) -> bool:
        """Return whether the log has everything committed after a base. Chunks that no commit lists may be deleted."""
        if base.state.position == 0 and not self.holds_mark:
            return False
        committed = base.state.committed_positions
        cut = [partition for partition in self._partitions if self._data[partition].start > committed.get(partition, 0)]
        return not cut or self._misses_nothing(base, cut)

    def _misses_nothing(self, base: LedgerBase, cut: Collection[int]) -> bool:
        """Return whether no commit after a base lists deleted chunks of these partitions, but for accepted losses."""
        position, starts = base.state.position, {partition: self._data[partition].start for partition in cut}
        with suppress(OffsetGone), self._log.replay(self.base_for(position), position) as ledger:
            listed = (entry for one in ledger.commits(self.ledger.end) for entry in one.entries(cut))
            deleted = [entry for entry in listed if entry.first_offset < starts[entry.partition]]
            return all(
                is_forfeited(
                    ledger.fold.accepted, one.partition, one.first_offset, min(one.end_offset, starts[one.partition])
                )
                for one in deleted
            )
        return False

    @cached_property
    def _begins_at(self) -> int:
        return self.newest.state.begins_at if self.newest else 0

    @cached_property
    def _data(self) -> dict[int, OffsetRange]:
        return self._log.data_offsets()

    # ---- checkpoints

    def _find_checkpoint(self, at: AtCheckpoint) -> int | None:
        """Return the position right after a checkpoint's commit, by a search backwards."""
        upper = self.ledger.end
        for manifest in self.manifests:
            position = self._find_between(at, manifest, upper)
            if position is not None:
                return position
            last = manifest.state.last_commit(at.writer)
            if last is not None and last.checkpoint.id == at.checkpoint_id:
                return last.offset + 1
            upper = manifest.position
        return self._find_between(at, None, upper)

    def _find_between(self, at: AtCheckpoint, base: Manifest | None, end: int) -> int | None:
        wanted = (at.writer, at.checkpoint_id)
        try:
            with self._log.replay(base) as ledger:
                found = [one.position for one in ledger.commits(end) if (one.writer, one.checkpoint_id) == wanted]
        except OffsetGone:
            return None  # The ledger does not reach back so far, so no state there can be recovered either.
        return found[-1] if found else None

    # ---- times

    def _first_since(self, timestamp_ms: int) -> int:
        """Return the offset of the ledger's first record of this time or later, by bisection; the end if there is none.
        The brokers' times ascend, except after a change to a leader whose clock is behind.
        """
        low, high = self.ledger
        with closing(self._log.kafka.reader(self._log.ledger_topic)) as reader:
            while low < high:
                middle = (low + high) // 2
                found = next(reader.read({0: OffsetRange(middle, high)}, stall_timeout_s=STALL_TIMEOUT_S), None)
                if found is None or self._time_of(found) >= timestamp_ms:
                    high = middle
                else:
                    low = found.offset + 1
        return low

    def _all_older(self, timestamp_ms: int) -> bool:
        """Return whether all records below the ledger's start are older: a snapshot of them is older than that time."""
        since_s = timestamp_ms / 1000 - _CLOCKS_APART_S
        put_s = {number: info.modified_s for number, info in self._log.manifests.listed().items()}
        return any(
            one.position >= self.ledger.start and max(one.created_s, put_s.get(one.number, math.inf)) <= since_s
            for one in self.manifests
        )

    def _time_of(self, record: Record) -> int:
        if record.timestamp_ms < 0:
            raise Misuse(
                "the ledger's records have no times from the broker",
                topic=self._log.ledger_topic,
                hint="Choose a position or a checkpoint: the topic's message.timestamp.type is not LogAppendTime",
            )
        return record.timestamp_ms


class Snapshots:
    """The snapshots of a log, and the errors of those that were passed over."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.failed: dict[int, StatelogError] = {}
        """The errors of snapshots that were passed over, by number."""
        self.warnings: list[str] = []

    def listed(self, *, max_age_s: float = 0.0) -> "Manifests":
        """List the snapshots; the listing may be `max_age_s` old. Raises IdentityChanged, StoreUnavailable."""
        listed = self._log.manifests.listed(max_age_s=max_age_s)
        newest = max(listed, default=0)
        return Manifests(
            list(listed), lambda one: self.read(one, listed[one], is_newest=one == newest, max_age_s=max_age_s)
        )

    @property
    def failure(self) -> StatelogError | None:
        """The error of the newest snapshot that was passed over."""
        return self.failed[max(self.failed)] if self.failed else None

    def pass_over(self, number: int, error: StatelogError) -> None:
        """Never use this snapshot again, and warn."""
        self.failed[number] = error
        text = f"{self._log.name}: snapshot {number} is damaged, falling back to an older one: {error}"
        self.warnings.append(text)
        _LOG.warning(text)

    def read(self, number: int, listed: FileInfo, *, is_newest: bool, max_age_s: float) -> Manifest | None:
        """Read a manifest; None if it is deleted, known to be damaged, or of earlier topics of the log. Raises
        IdentityChanged if the newest one is of other topics, UnknownFormat.
        """
        if number in self.failed:
            return None
        try:
            manifest = self._log.manifests.read(number, max_age_s=max_age_s, listed=listed)
        except NotFound:
            return None  # Superseded and cleaned up after the listing.
        except CorruptManifest as error:
            hint = error.hint or "Restore the file from a copy of the store"
            self.pass_over(number, error.restated(hint=hint))
            return None
        if manifest.identity != self._log.descriptor.identity:
            if not is_newest and self._log.descriptor.made_with is not None:
                return None  # A person accepted the loss of those topics, so their states do not count.
            raise IdentityChanged(
                "a manifest was made for another log",
                log=self._log.name,
                manifest=number,
                url=self._log.store.url,
                hint="Restore this log's own files: files were copied between directories",
            )
        return manifest


class Manifests:
    """The readable ones of listed manifests, newest first, each read on first use."""

    def __init__(self, numbers: Sequence[int], read: Callable[[int], Manifest | None]) -> None:
        self._numbers = numbers
        self._read = cache(read)

    def __iter__(self) -> Iterator[Manifest]:
        return (found for number in reversed(self._numbers) if (found := self._read(number)) is not None)
