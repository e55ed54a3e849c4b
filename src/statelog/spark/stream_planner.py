"""`StreamPlanner`: plans the micro-batches of one query: where each ends, and what its tasks read. No Spark in it.

It lives as long as the query's process. Spark may die anywhere: whatever a planner knows follows from the offsets in
Spark's checkpoint, the log, and the subscription. Each look at the ledger reads what is new, and nothing twice
(`CommitWindow`).

What keeps a stream's place from truncation (`StreamHold`) is a subscription, if the query names a reader, which holds
while the query is stopped, too; else a lease, which holds for its time after the last micro-batch began, and is
replaced every hour, because no lease may live longer than the materializer allows.

Invariants:
- A micro-batch has the changes of whole commits, valid ones only, or the state at one position.
- A batch that Spark has begun is planned again as it was, or is an error: it never becomes another.
- What is gone is an error, or a new beginning after a reset; it is never skipped.
- Only places that Spark has committed are held, so a query that is started again finds its own there.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from statelog.closing import Closing
from statelog.environment import current_environment
from statelog.errors import NotFound, OffsetGone, StatelogError, SubscriptionEnded
from statelog.log import Log
from statelog.reading import (
    AtPosition,
    CommitFacts,
    HeldSubscription,
    Hold,
    Needs,
    Plan,
    RetainedHistory,
    commit_facts,
    end_subscription,
    newer_values,
    partitions_of,
    place_at,
    plan_changes,
    wanted_key_groups,
)
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.ledger.fold import Folded, LedgerBase
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.snapshot.claims import check_holder
from statelog.spark.options import NO_LIMIT, Beginning, Limit, OnTruncation, StreamOptions, refuse_future
from statelog.spark.parts import lease_terms
from statelog.spark.stream_offset import StreamOffset, batch_start, is_reset

_LOG = logging.getLogger("statelog.spark")
_MOVE_S = 30.0
_ANEW_S = 3600.0


def admitted(commits: Iterable[CommitFacts], limit: Limit) -> int:
    """How many of these commits, the oldest first, make the next micro-batch: all within the limit, but at least one,
    because a commit counts as a whole.
    """
    taken, changes, size_bytes = 0, 0, 0
    for commit in commits:
        changes += commit.changes
        size_bytes += commit.size_bytes
        if taken and (changes > limit.changes or size_bytes > limit.size_bytes):
            break
        taken += 1
    return taken


class StreamPlanner(Closing):
    """Plans for one query. Belongs to one thread. Raises KeyGroupMismatch for key groups that the log lacks."""

    def __init__(self, log: Log, options: StreamOptions) -> None:
        self.log = log
        self.options = options
        self._environment = current_environment()
        self._groups = wanted_key_groups(options.key_groups, log.descriptor)
        self._hold: StreamHold | None = None
        self._window: CommitWindow | None = None
        self._known = (0, 0)
        self._let_state_go: Callable[[], None] | None = None

    # ---- what Spark asks, in its order

    def begin(self) -> StreamOffset:
        """Where a new reading begins. Raises NotFound if the log does not hold the place, ConfigError for a time
        that is still to come, Damaged, Unavailable."""
        reading, identity = self._environment.new_id(), self.log.descriptor.identity
        match self.options.start:
            case Beginning.SNAPSHOT:
                newest = self.log.manifests.newest()
                place = newest.place if newest else ORIGIN
                return StreamOffset.initial(identity, reading, place, awaits_state=newest is not None)
            case Beginning.LATEST:
                position = self.log.ledger.end(at_least=self.log.position)
            case Beginning.EARLIEST:
                position = RetainedHistory(self.log, self._groups).oldest_position
            case bound:
                refuse_future(bound, self._environment.wall_clock())
                position = RetainedHistory(self.log, self._groups).resolve(bound)
        place = place_at(self.log, position)
        return StreamOffset.initial(identity, reading, place, awaits_state=False)

    def end_of(self, start: StreamOffset, limit: Limit = NO_LIMIT, *, until: int | None = None) -> StreamOffset:
        """Where the micro-batch behind `start` ends; `start` itself if there is nothing. `start` is committed: what is
        below is not held any more. Not beyond the position `until`.

        Raises NotFound, SubscriptionEnded with the way out, ReaderInUse, Damaged, Unavailable.
        """
        try:
            window = self._follow(start)
            self._held(start).move(start.position, window.rebase)
            if not start.awaits_state:
                return self._next_end(start, window, limit, until)
        except (NotFound, OffsetGone, SubscriptionEnded) as error:
            return self._begin_anew(start, error)
        self._check_kept(start.position)
        self._known = (window.ledger_end(), start.position)
        return replace(start, awaits_state=False)

    def _next_end(self, start: StreamOffset, window: "CommitWindow", limit: Limit, until: int | None) -> StreamOffset:
        self._release_state()  # Spark has committed the micro-batch that read it.
        end_position = window.ledger_end()
        target = end_position if until is None else min(until, end_position)
        window.read_ahead(target, lambda: limit != NO_LIMIT and admitted(window.commits, limit) < len(window.commits))
        taken = admitted(window.commits, limit)
        found = replace(start, place=window.commits[taken - 1].place, is_reset=False) if taken else start
        self._known = (end_position, found.position)
        if not taken and until is not None:  # The run is over, and the next one may be a night away.
            self._held(start).move(start.position, window.rebase, at_once=True)
        return found

    def plan(self, start: StreamOffset, end: StreamOffset, value_schema_id: int) -> Plan:
        """What the tasks of a micro-batch read, which is now in Spark's checkpoint: changes, or a state.

        Raises NotFound or SubscriptionEnded if it is gone by now, ReaderInUse, Damaged, Unavailable, and
        IncompatibleSchema if a state may have values of a newer schema.
        """
        first = batch_start(start, end)
        try:
            window = self._follow(first)
            self._held(first).take_up(window.rebase)
            if self._known == (0, 0):  # Started again with a micro-batch that was begun: its end was not asked for.
                self._known = (self.log.ledger.end(at_least=end.position), end.position)
            if first.awaits_state or is_reset(start, end):
                return self._state(end.position, value_schema_id)
            return plan_changes(
                self.log,
                AtPosition(first.position),
                AtPosition(end.position),
                key_groups=self._groups,
                value_schema_id=value_schema_id,
                base=window.base,
                seen=[first.place, end.place],
            )
        except (NotFound, OffsetGone, SubscriptionEnded) as error:
            raise _gone(f"the micro-batch up to position {end.position}, which the query has begun", error) from error

    def report(self) -> dict[str, int]:
        """The ledger's end, and how many records of it lie behind the last micro-batch: those of other kinds, too."""
        end_position, read_position = self._known
        return {"position": end_position, "behindRecords": max(0, end_position - read_position)}

    def close(self) -> None:
        """Let a lease go and release the clients; a subscription stays. Idempotent."""
        if self._hold is not None:
            self._hold.close()
        self._hold = self._window = None
        self._release_state()

    # ---- a place and its hold

    def _held(self, offset: StreamOffset) -> "StreamHold":
        if self._hold is None or self._hold.reading != offset.reading:
            if self._hold is not None:
                self._hold.close()
            self._hold = self._environment.run(StreamHold, self.log, self.options, offset.reading)
        return self._hold

    def _follow(self, offset: StreamOffset) -> "CommitWindow":
        """The commits from an offset on. Raises NotFound, OffsetGone if the log does not hold them."""
        if self._window is not None and self._window.holds(offset.position):
            self._window.move_to(offset.position)
            return self._window
        self._window = None
        reach = RetainedHistory(self.log, self._groups, self._held(offset).kept_base(), seen=[offset.place])
        base = reach.base_for(offset.position)
        self._window = CommitWindow(self.log, base, offset.place, self._groups, self._held(offset).kept_base)
        return self._window

    def _begin_anew(self, start: StreamOffset, error: StatelogError) -> StreamOffset:
        """Behind a reset, at the newest snapshot, if the query asked for that. Raises the trouble with the way out."""
        newest = self.log.manifests.newest()
        if self.options.on_truncation is OnTruncation.FAIL or newest is None:
            raise _gone(f"position {start.position}, where the query goes on", error) from error
        place = newest.place
        _LOG.warning("%s: a stream begins anew from the snapshot at position %d: %s", self.log.name, place[0], error)
        anew = StreamOffset.initial(start.identity, self._environment.new_id(), place, awaits_state=False)
        self._held(start).give_up(start.position, error)
        self._held(anew).move(anew.position, lambda: newest)
        self._check_kept(anew.position)
        return replace(anew, is_reset=True)

    def _check_kept(self, position: int) -> None:
        """Raise NotFound if the snapshot that is to be read next is gone. It is kept from when its position is held;
        nothing of it is in Spark's checkpoint yet.
        """
        if all(one.position != position for one in RetainedHistory(self.log, self._groups).manifests):
            raise NotFound(
                "the snapshot where the stream was to begin was dropped at the same moment",
                position=position,
                hint="Start the query again: it begins with a newer one",
            )

    def _state(self, position: int, value_schema_id: int) -> Plan:
        """The plan of a state, held by a lease until its micro-batch is committed."""
        self._release_state()
        newest_id = self.log.value_schemas.newest().id
        if newest_id > value_schema_id:
            raise newer_values(newest_id, value_schema_id)  # It is not known whether the state has such values.
        lease_s = max(300, self.options.lease_s)
        settings = RecoverySettings(holder="spark-stream", lease_ttl_s=lease_s, value_schema_id=value_schema_id)
        found = recover(self.log, key_groups=self._groups, at=AtPosition(position), settings=settings)
        self._let_state_go = found.reserve()
        return replace(found.plan, value_schema_id=value_schema_id)

    def _release_state(self) -> None:
        if self._let_state_go is not None:
            self._let_state_go()
            self._let_state_go = None


class CommitWindow:
    """The commits from `start` on, of which `key_groups` count (None: all). Belongs to one thread.

    `base` lies at or below the start; None is the ledger's first record; `kept` gives what others may have kept since.
    Raises OffsetGone if it is truncated, AnchorMismatch if the record below the start is another one now.
    """

    def __init__(
        self,
        log: Log,
        base: LedgerBase | None,
        start: Place,
        key_groups: Collection[int] | None = None,
        kept: Callable[[], LedgerBase | None] = lambda: None,
    ) -> None:
        self._log = log
        self._kept = kept
        self._near: LedgerBase | None = None
        self._partitions = partitions_of(key_groups, log.descriptor)
        with log.replay(base, start.position) as replay:
            self.base = replay.folded
        log.history.expect([start])
        self._start = self._position = start.position
        self._read = self.base
        """The ledger at some place that was read, where the base may be by and by."""
        self.commits: deque[CommitFacts] = deque()

    def holds(self, position: int) -> bool:
        """Whether a stream can go on at this position without a new window."""
        return self._start <= position <= self._position

    def move_to(self, position: int) -> None:
        """Begin at a position that the window holds."""
        while self.commits and self.commits[0].position <= position:
            self.commits.popleft()
        self._start = position

    def ledger_end(self) -> int:
        """The ledger's end now. Raises BeyondEnd or AnchorMismatch if it lacks what was read, IdentityChanged,
        BrokerUnavailable.
        """
        end_position = self._log.history.end(self._position)
        self._log.history.read_to(end_position)
        return end_position

    def read_ahead(self, end_position: int, is_enough: Callable[[], bool]) -> None:
        """Read on, up to the end or until it is enough. Raises OffsetGone, BeyondEnd, Damaged, Unavailable."""
        if is_enough():
            return
        found = self._log.history.commits(self._position, end_position)
        if found is None:
            with self._log.replay(self.base, self._position) as replay:
                found = replay.read_to(end_position)
        self.commits.extend(commit_facts(one, self._partitions) for one in found)
        self._position = max(self._position, end_position)
        view = self._log.history.view()
        self._read = Folded(view.state, view.place)

    def rebase(self) -> Folded:
        """Fold the base up to the start, which it then is; reads again what lies between. Behind a rest the ledger may
        hold less of that, and a snapshot have the rest, or the hold, which another driver of the query moved.
        """
        if self._read.place.position == self._start:
            self.base = self._read
        if self.base.state.position < self._start:
            try:
                with self._log.replay(self.base, self._start) as replay:
                    self.base = replay.folded
            except OffsetGone:
                with self._log.replay(self._nearest(), self._start) as replay:
                    self.base = replay.folded
        return self.base

    def _nearest(self) -> LedgerBase | None:
        """The nearest one that was ever found: a snapshot may be gone when it is asked for again, and all others lie
        above, or what is held below.
        """
        with suppress(NotFound):
            found = RetainedHistory(self._log, None, self._kept()).base_for(self._start)
            if self._near is None or found is None or found.state.position > self._near.state.position:
                self._near = found
        return self._near


class StreamHold(Closing):
    """Holds one reading's place. Belongs to one thread."""

    def __init__(self, log: Log, options: StreamOptions, reading: str) -> None:
        self._log = log
        self._clock = current_environment().clock
        self._held_s: float | None = None
        self._position = -1
        self._is_taken_up = False
        self.reading = reading
        self._lease = Hold(log.store, lease_terms(options.lease_s, "spark-stream"))
        self._subscription = None
        if options.reader is not None:
            holder = f"Spark stream {reading}"
            self._subscription = HeldSubscription(log, options.reader, holder_id=reading, holder=holder)

    def kept_base(self) -> LedgerBase | None:
        """The fold that the reader's subscription carries, if there is one. Raises SubscriptionEnded, ReaderInUse."""
        found = self._subscription.newest() if self._subscription else None
        check_holder(found, self.reading)
        return None if found is None or found.identity != self._log.descriptor.identity else found

    def move(self, position: int, base: Callable[[], LedgerBase], *, at_once: bool = False) -> None:
        """Hold a committed position, if it is time to, or `at_once`; `base` is the fold there.

        Raises SubscriptionEnded, ReaderInUse, OffsetGone, StoreRefused, Unavailable.
        """
        self._lease.renew()
        least_s = _ANEW_S if position == self._position else 0.0 if at_once else _MOVE_S
        if self._held_s is None or self._clock() - self._held_s >= least_s:
            self._hold(base())

    def take_up(self, base: Callable[[], LedgerBase]) -> None:
        """Spark has the reading in its checkpoint: from now on nobody else takes its reader id."""
        if self._subscription is not None and not self._is_taken_up:
            self._hold(base(), take_up=True)
            self._is_taken_up = True

    def give_up(self, position: int, error: StatelogError) -> None:
        """End the subscription of this reading, if it stands: it held nothing, and its reader is the next reading's.
        Not one that lies above the lost `position`: another driver of the query went on, and may live. Raises Corrupt,
        StoreRefused, Unavailable.
        """
        found = self._subscription.newest() if self._subscription else None
        if found is None or found.holder_id != self.reading or found.position > position:
            return
        if not found.ended:
            end_subscription(self._log.store, found, error.message, current_environment())

    def close(self) -> None:
        """Let a lease go; a subscription stays."""
        self._lease.close()

    def _hold(self, base: LedgerBase, *, take_up: bool = False) -> None:
        if self._subscription is not None:
            self._subscription.hold(base.state, base.place.last, take_up=take_up or self._is_taken_up)
        else:
            self._lease.claim(Needs.behind(base.state, range(self._log.descriptor.partitions)))
        self._position, self._held_s = base.state.position, self._clock()


def _gone(what: str, error: StatelogError) -> StatelogError:
    if isinstance(error, SubscriptionEnded):
        return error.restated(
            hint="Start the query with another readerId: it goes on if the log still holds its place. Else start it"
            " with a new checkpoint and startingPosition=snapshot; onTruncation=snapshot does so by itself",
        )
    return NotFound(
        f"the log does not hold {what}",
        hint="Start it with a new checkpoint, startingPosition=snapshot and a new readerId, which holds the place of a"
        " query that is stopped (onTruncation=snapshot does so by itself, but for a micro-batch that was begun)",
        reason=error.message,
        **{name: fact for name, fact in error.facts.items() if name != "reason"},
    )
