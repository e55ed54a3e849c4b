"""`StreamPlanner`: plans the micro-batches of one query: where each ends, and what its tasks read. Free of Spark.

It exists as long as the query's process. Spark may die anywhere: all of a planner's knowledge follows from the offsets
in Spark's checkpoint, the log, and the subscription. The ledger is read incrementally (`CommitWindow`).

`StreamHold` protects a stream's position from truncation. If the query names a reader, by a subscription, which also
holds while the query is stopped. Else by a lease, which holds for its time after the last micro-batch began. It is
replaced every hour, because the materializer limits the age of leases.

Invariants:
- A micro-batch has the changes of whole commits, valid ones only, or the state at one position.
- A batch that Spark has begun is planned again unchanged, or is an error.
- Truncated changes are an error, or a new beginning after a reset; they are never skipped.
- Only positions that Spark has committed are held, so a restarted query finds its own still held.
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
_REPLACE_S = 3600.0


def admitted(commits: Iterable[CommitFacts], limit: Limit) -> int:
    """Return how many of these commits, oldest first, make the next micro-batch: all within the limit, at least one."""
    taken, changes, size_bytes = 0, 0, 0
    for commit in commits:
        changes += commit.changes
        size_bytes += commit.size_bytes
        if taken and (changes > limit.changes or size_bytes > limit.size_bytes):
            break
        taken += 1
    return taken


class StreamPlanner(Closing):
    """The planner of one query. Belongs to one thread. Raises KeyGroupMismatch for key groups that the log lacks."""

    def __init__(self, log: Log, options: StreamOptions) -> None:
        self.log = log
        self.options = options
        self._environment = current_environment()
        self._groups = wanted_key_groups(options.key_groups, log.descriptor)
        self._hold: StreamHold | None = None
        self._window: CommitWindow | None = None
        self._known = (0, 0)
        self._drop_lease: Callable[[], None] | None = None

    # ---- called by Spark, in this order

    def begin(self) -> StreamOffset:
        """Return where a new reading begins.

        Raises NotFound if the log does not have that position, ConfigError for a time in the future, Damaged,
        Unavailable.
        """
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
        """Return where the micro-batch after `start` ends, at most at the position `until`; `start` if it is empty.

        `start` is committed by Spark, so the changes below it are released. Raises NotFound, SubscriptionEnded with the
        way out, ReaderInUse, Damaged, Unavailable.
        """
        try:
            window = self._follow(start)
            self._held(start).move(start.position, window.rebase)
            if not start.awaits_state:
                return self._next_end(start, window, limit, until)
        except (NotFound, OffsetGone, SubscriptionEnded) as error:
            return self._start_over(start, error)
        self._check_retained(start.position)
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
        if not taken and until is not None:  # The run ends, and the next one may come a day later.
            self._held(start).move(start.position, window.rebase, at_once=True)
        return found

    def plan(self, start: StreamOffset, end: StreamOffset, value_schema_id: int) -> Plan:
        """Return the plan of a micro-batch, which is now in Spark's checkpoint: changes, or a state.

        Raises NotFound or SubscriptionEnded if it was truncated, ReaderInUse, Damaged, Unavailable, and
        IncompatibleSchema if a state may have values of a newer schema.
        """
        first = batch_start(start, end)
        try:
            window = self._follow(first)
            self._held(first).take_up(window.rebase)
            if self._known == (0, 0):  # Restarted with a micro-batch that was begun: `end_of` was not called.
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
            what = f"the micro-batch up to position {end.position}, which the query has begun"
            raise _truncated(what, error) from error

    def report(self) -> dict[str, int]:
        """Return the ledger's end, and the number of its records, of any kind, after the last micro-batch."""
        end_position, read_position = self._known
        return {"position": end_position, "behindRecords": max(0, end_position - read_position)}

    def close(self) -> None:
        """Remove a lease and release the clients; a subscription stays. Idempotent."""
        if self._hold is not None:
            self._hold.close()
        self._hold = self._window = None
        self._release_state()

    # ---- a position and its hold

    def _held(self, offset: StreamOffset) -> "StreamHold":
        if self._hold is None or self._hold.reading != offset.reading:
            if self._hold is not None:
                self._hold.close()
            self._hold = self._environment.run(StreamHold, self.log, self.options, offset.reading)
        return self._hold

    def _follow(self, offset: StreamOffset) -> "CommitWindow":
        """Return the window of the commits after an offset. Raises NotFound, OffsetGone if the log lacks some."""
        if self._window is not None and self._window.holds(offset.position):
            self._window.move_to(offset.position)
            return self._window
        self._window = None
        history = RetainedHistory(self.log, self._groups, self._held(offset).subscribed_base(), seen=[offset.place])
        base = history.base_for(offset.position)
        self._window = CommitWindow(self.log, base, offset.place, self._groups, self._held(offset).subscribed_base)
        return self._window

    def _start_over(self, start: StreamOffset, error: StatelogError) -> StreamOffset:
        """Return the newest snapshot, with a reset, if the query allows that. Raises the error with the way out."""
        newest = self.log.manifests.newest()
        if self.options.on_truncation is OnTruncation.FAIL or newest is None:
            raise _truncated(f"position {start.position}, where the query continues", error) from error
        place = newest.place
        _LOG.warning("%s: a stream starts over from the snapshot at position %d: %s", self.log.name, place[0], error)
        begin = StreamOffset.initial(start.identity, self._environment.new_id(), place, awaits_state=False)
        self._held(start).give_up(start.position, error)
        self._held(begin).move(begin.position, lambda: newest)
        self._check_retained(begin.position)
        return replace(begin, is_reset=True)

    def _check_retained(self, position: int) -> None:
        """Raise NotFound if the snapshot at the held position was dropped before it was held.

        Nothing of it is in Spark's checkpoint yet.
        """
        if all(one.position != position for one in RetainedHistory(self.log, self._groups).manifests):
            raise NotFound(
                "the snapshot where the stream was to begin was dropped at the same moment",
                position=position,
                hint="Start the query again: it begins with a newer snapshot",
            )

    def _state(self, position: int, value_schema_id: int) -> Plan:
        """Return the plan of a state, held by a lease until its micro-batch is committed."""
        self._release_state()
        newest_id = self.log.value_schemas.newest().id
        if newest_id > value_schema_id:
            raise newer_values(newest_id, value_schema_id)  # It is unknown whether the state has such values.
        lease_s = max(300, self.options.lease_s)
        settings = RecoverySettings(holder="spark-stream", lease_ttl_s=lease_s, value_schema_id=value_schema_id)
        found = recover(self.log, key_groups=self._groups, at=AtPosition(position), settings=settings)
        self._drop_lease = found.reserve()
        return replace(found.plan, value_schema_id=value_schema_id)

    def _release_state(self) -> None:
        if self._drop_lease is not None:
            self._drop_lease()
            self._drop_lease = None


class CommitWindow:
    """The commits after `start`. Belongs to one thread.

    base        a state at or below the start; None is the ledger's first record
    key_groups  those that count (None: all)
    subscribed  returns the base that the reader's subscription has now

    Raises OffsetGone if the start was truncated, AnchorMismatch if the record below it is another one now.
    """

    def __init__(
        self,
        log: Log,
        base: LedgerBase | None,
        start: Place,
        key_groups: Collection[int] | None = None,
        subscribed: Callable[[], LedgerBase | None] = lambda: None,
    ) -> None:
        self._log = log
        self._subscribed = subscribed
        self._newest: LedgerBase | None = None
        self._partitions = partitions_of(key_groups, log.descriptor)
        with log.replay(base, start.position) as replay:
            self.base = replay.folded
        log.history.expect([start])
        self._start = self._position = start.position
        self._read = self.base
        """The ledger's state as it was read last, which may become the base."""
        self.commits: deque[CommitFacts] = deque()

    def holds(self, position: int) -> bool:
        """Return whether a stream can continue at this position without a new window."""
        return self._start <= position <= self._position

    def move_to(self, position: int) -> None:
        """Move the start to a position in the window."""
        while self.commits and self.commits[0].position <= position:
            self.commits.popleft()
        self._start = position

    def ledger_end(self) -> int:
        """Return the ledger's end now.

        Raises BeyondEnd or AnchorMismatch if the ledger lost records that were read, IdentityChanged,
        BrokerUnavailable.
        """
        end_position = self._log.history.end(self._position)
        self._log.history.read_to(end_position)
        return end_position

    def read_ahead(self, end_position: int, is_enough: Callable[[], bool]) -> None:
        """Read commits up to the end, unless there are enough. Raises OffsetGone, BeyondEnd, Damaged, Unavailable."""
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
        """Fold the base up to the start, by reading the records between them again, and return it.

        After a pause they may be truncated. Then a snapshot has them, or the subscription, which another driver of the
        query moved.
        """
        if self._read.place.position == self._start:
            self.base = self._read
        if self.base.state.position < self._start:
            try:
                with self._log.replay(self.base, self._start) as replay:
                    self.base = replay.folded
            except OffsetGone:
                with self._log.replay(self._newest_base(), self._start) as replay:
                    self.base = replay.folded
        return self.base

    def _newest_base(self) -> LedgerBase | None:
        """Return the newest base at or below the start that was ever found: its snapshot may be deleted by now."""
        with suppress(NotFound):
            found = RetainedHistory(self._log, None, self._subscribed()).base_for(self._start)
            if self._newest is None or found is None or found.state.position > self._newest.state.position:
                self._newest = found
        return self._newest


class StreamHold(Closing):
    """The hold on one reading's position. Belongs to one thread."""

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

    def subscribed_base(self) -> LedgerBase | None:
        """Return the state in the reader's subscription, if there is one. Raises SubscriptionEnded, ReaderInUse."""
        found = self._subscription.newest() if self._subscription else None
        check_holder(found, self.reading)
        return None if found is None or found.identity != self._log.descriptor.identity else found

    def move(self, position: int, base: Callable[[], LedgerBase], *, at_once: bool = False) -> None:
        """Hold a committed position, if that is due, or `at_once`; `base` returns the state there.

        Raises SubscriptionEnded, ReaderInUse, OffsetGone, StoreRefused, Unavailable.
        """
        self._lease.renew()
        least_s = _REPLACE_S if position == self._position else 0.0 if at_once else _MOVE_S
        if self._held_s is None or self._clock() - self._held_s >= least_s:
            self._hold(base())

    def take_up(self, base: Callable[[], LedgerBase]) -> None:
        """Claim the reader id for this reading, which is now in Spark's checkpoint."""
        if self._subscription is not None and not self._is_taken_up:
            self._hold(base(), take_up=True)
            self._is_taken_up = True

    def give_up(self, position: int, error: StatelogError) -> None:
        """End the subscription of this reading, so that the next reading can use its reader.

        One above the lost `position` stays: another driver of the query continued, and may be alive. Raises Corrupt,
        StoreRefused, Unavailable.
        """
        found = self._subscription.newest() if self._subscription else None
        if found is None or found.holder_id != self.reading or found.position > position:
            return
        if not found.ended:
            end_subscription(self._log.store, found, error.message, current_environment())

    def close(self) -> None:
        """Remove a lease; a subscription stays."""
        self._lease.close()

    def _hold(self, base: LedgerBase, *, take_up: bool = False) -> None:
        if self._subscription is not None:
            self._subscription.hold(base.state, base.place.last, take_up=take_up or self._is_taken_up)
        else:
            self._lease.claim(Needs.behind(base.state, range(self._log.descriptor.partitions)))
        self._position, self._held_s = base.state.position, self._clock()


def _truncated(what: str, error: StatelogError) -> StatelogError:
    if isinstance(error, SubscriptionEnded):
        return error.restated(
            hint="Start the query with another readerId: it continues if the log still holds its position. Else start"
            " it with a new checkpoint and startingPosition=snapshot; onTruncation=snapshot does so by itself",
        )
    return NotFound(
        f"the log does not hold {what}",
        hint="Start it with a new checkpoint, startingPosition=snapshot and a new readerId, which holds the position of"
        " a stopped query (onTruncation=snapshot does so by itself, but for a micro-batch that was begun)",
        reason=error.message,
        **{name: fact for name, fact in error.facts.items() if name != "reason"},
    )
