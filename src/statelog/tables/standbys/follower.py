"""`Follower`: moves the state of a standby on as its owner commits, and hands it to the new owner.

The steps, reasons to rebuild a state, and errors that end it: docs/protocol-table.md, S and P. A thread waits for
commits, and makes a step; a caller that wants the newest state makes one at once.

Invariants:
- One step at a time, and none during a promotion: each holds `lock`.
- Before the new owner's Open is valid, a failure changes nothing, and the standby goes on. Later it ends the standby.
"""

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Event, Lock
from typing import TypeAlias

import pyarrow as pa

from statelog.closing import undone_by_errors
from statelog.environment import GRACE_S
from statelog.errors import BeyondEnd, BrokerUnavailable, ClosedError, DataLoss, IncompatibleSchema, OffsetGone
from statelog.producer import Writer
from statelog.producer.guard import Life
from statelog.reading import retry_planning
from statelog.recovery import recover
from statelog.recovery.changes import PAUSE, CommitFeed
from statelog.recovery.settings import tuning_of
from statelog.schemas.values.schema import ValueSchema
from statelog.tables.setup import TableSetup
from statelog.tables.standbys.followed import FollowedState, StateView
from statelog.tables.state.store import StatePlace
from statelog.tables.state.values import ValueRule
from statelog.tables.state_opener import ExistingState, OpenReport, StateOpener, Unfit, Wanted

_LOG = logging.getLogger("statelog.tables")

_LEAST_PAUSE = 0.1
"""The pause after a step that took longer than its interval, as a part of the interval."""
_PAUSE_S = 0.05
_Release: TypeAlias = Callable[[StatePlace], Unfit]
"""Close the state in use, in favour of one that was made at this place, and return why."""
_Begun: TypeAlias = tuple[CommitFeed, StateView]


class Follower:
    """Follows the newest state of a table. `poll_s` None: no thread, the caller makes the steps."""

    def __init__(self, setup: TableSetup, poll_s: float | None) -> None:
        self.setup = setup
        self.lock = Lock()
        """Held during a step."""
        self._environment = setup.environment
        self._poll_s = poll_s
        self._stop = Event()
        self._feed, view = retry_planning(lambda: self._begun(0, None, None))
        self.state = FollowedState(view, self._environment.clock)

    # ---- the thread

    def start(self) -> None:
        """Follow on a thread, unless the caller makes the steps."""
        self._keep_spare()
        if self._poll_s is not None:
            self._environment.start(partial(self._run, self._poll_s))

    def _run(self, pace_s: float) -> None:
        """Make steps until the end. Raises nothing: reads of the state raise its error."""
        wait_s = pace_s
        while not self._rest(wait_s):
            with self.lock:
                if self._stop.is_set() or self.state.life is not Life.OPEN:
                    break
                began_s = self._environment.clock()
                try:
                    self.state.is_called = False
                    self._step(None)
                    self.state.is_answered = self._feed.is_answered
                    self._keep_spare()
                except BaseException as error:  # noqa: BLE001 - reads raise it
                    self._fail(error)
                    break
            # The pause lets other threads take the lock, also after a long step.
            wait_s = max(pace_s * PAUSE - (self._environment.clock() - began_s), pace_s * _LEAST_PAUSE)

    def _rest(self, wait_s: float) -> bool:
        """Pause, then wait until there are commits, or a reader wants the age. Return whether following is over."""
        if not self._stop.wait(wait_s):
            self._feed.wait(lambda: self._stop.is_set() or self.state.is_called)
        return self._stop.is_set()

    def _keep_spare(self) -> None:
        """Keep a connected producer for a promotion, while Kafka answers."""
        if self._feed.is_answered:
            self.setup.log.warm_producer.keep(self._environment.clock())

    # ---- steps; their caller holds the lock

    @contextmanager
    def _exclusively(self) -> Generator[None]:
        """Keep steps out of the block. Raises BrokerUnavailable if one takes too long, and a failed state's error."""
        timeout_s = tuning_of(self.setup.settings.recovery).stall_timeout_s
        if not self.lock.acquire(timeout=timeout_s):
            raise BrokerUnavailable("a step of the standby still waits for Kafka or the store", waited_s=timeout_s)
        try:
            self.state.check()
            yield
        finally:
            self.lock.release()

    def refresh(self) -> bool:
        """Make a step, and return whether the state is level with the ledger's end of now.

        Raises Damaged, Fenced, Unavailable, which end the standby; BrokerUnavailable if another step takes too long.
        """
        with self._exclusively():
            try:
                self._step(None)
                self._keep_spare()
            except BaseException as error:
                self._fail(error)
                raise
            return self._feed.is_answered

    def _step(self, end_position: int | None) -> None:
        """Read commits and move past them, up to the ledger's present end, or to a position that is known to exist."""
        try:
            reason = self._follow(end_position)
        except OffsetGone as error:
            reason = error.message
        except IncompatibleSchema as error:
            if self.setup.log.value_schemas.newest().id == self._schema_id:
                raise
            reason = error.message
        if reason:
            self._rebuild(reason, end_position or 0)

    @property
    def _schema_id(self) -> int:
        return self.state.view.state.values.schema.id

    def _follow(self, end_position: int | None) -> str:
        """Make a step without rebuilding. Return why the state has to be rebuilt; empty if it does not."""
        feed, asked_s = self._feed, self._environment.clock()
        commits = feed.commits(end_position)
        if not feed.is_answered:
            return ""
        self._environment.crash("asked")
        if len(feed.folded.state.accepted) != self.state.view.place.losses:
            return "a loss was accepted since, and it may have the lost changes"
        with closing(feed.changes(commits, self._check_wanted)) as tables:
            first = next(tables, None)  # The commits are read and verified then.
            if feed.converter.target.id != self._schema_id:
                return "there are values of a newer schema"
            if commits:
                self._environment.crash("read")
            self._move(tables if first is None else chain([first], tables), asked_s)
        feed.passed(commits)
        self._environment.crash("followed")
        return ""

    def _move(self, rows: Iterable[pa.Table], asked_s: float) -> None:
        feed, old = self._feed, self.state.view
        moved = replace(
            old,
            place=StatePlace.folded(feed.folded.place, feed.folded.state),
            last_commit=feed.folded.state.last_commit(self.setup.owner),
            level_s=asked_s,
        )
        if moved.place == old.place:
            self.state.level(moved)
            return
        with self.state.moving():
            for table in rows:
                old.state.store.load(table)
            self._environment.crash("loaded")
            old.state.store.move(moved.place)
            self.state.view = moved

    def _check_wanted(self) -> None:
        """Raise ClosedError once the standby is closed: making a state may take hours."""
        if self._stop.is_set():
            raise ClosedError("the standby was closed")

    # ---- making a state

    def _rebuild(self, reason: str, at_least: int, schema: ValueSchema | None = None) -> None:
        """Rebuild the state from the newest snapshot and the tail, while the old one is read."""
        _LOG.warning("the standby of %s is rebuilt: %s", self.setup.log.name, reason)
        old = self.state.view
        at_least = max(at_least, old.place.position)
        self._feed.close()
        with ExitStack() as moving:

            def release(place: StatePlace) -> Unfit:
                self._check_wanted()
                moving.enter_context(self.state.moving())
                old.state.close()
                return Unfit(reason, has_lost=old.place.may_have_lost(place))

            self._feed, self.state.view = retry_planning(lambda: self._begun(at_least, schema, release))
        self._environment.crash("rebuilt")

    def _begun(self, at_least: int, schema: ValueSchema | None, release: _Release | None) -> _Begun:
        """Make the newest state, at a position or above it, and its feed.

        `schema`: of its values; None is the newest. `release`: closes a state in use that it replaces. Raises NotFound,
        OffsetGone, Damaged, StorageFull, Unavailable.
        """
        setup, level_s = self.setup, self._environment.clock()
        feed: CommitFeed  # Made later, because it goes on where the recovery ends.

        def on_step(*_: object) -> None:
            self._check_wanted()
            feed.renew()

        recovery = setup.environment.run(
            recover,
            setup.log,
            key_groups=setup.keys.owned,
            at_least=at_least,
            on_progress=on_step,
            settings=replace(setup.settings.recovery, value_schema_id=None if schema is None else schema.id),
        )
        plan, values = recovery.plan, ValueRule(recovery.value_schema)
        feed = CommitFeed(setup.log, plan, setup.keys.owned, setup.settings.recovery, setup.environment)
        with undone_by_errors(feed.close), recovery:
            place = StatePlace.folded(plan.place, plan.state)
            opener = StateOpener(setup, Wanted(place=place, values=values, recovery=recovery), on_step=on_step)
            state, report = opener.open(
                ExistingState(in_use=release) if release else ExistingState.found(setup, values)
            )
        return feed, StateView(
            state=state,
            place=place,
            last_commit=plan.state.last_commit(setup.owner),
            level_s=level_s,
            opening=report,
        )

    # ---- the new owner

    def promote(self) -> tuple[Writer, OpenReport]:
        """Open the owner, bring the state to its Open, and return the owner and the report.

        Raises Fenced, OutcomeUnknown, ConfigError, Unavailable before the Open is valid; the standby then goes on.
        Raises Damaged, Fenced, Unavailable after it; the standby has then failed.
        """
        setup, environment = self.setup, self._environment
        with self.state.without_scans(), self._exclusively():
            writer = setup.writer()
            try:
                environment.crash("promoting")
                report = self._catch_up(writer)
                environment.crash("promoted")
                self._stop.set()
                self.state.close("promoted")
                environment.start(self._feed.close)
            except BaseException as error:
                self.state.fail(error)
                with suppress(Exception):
                    writer.__exit__(type(error), error, None)
                raise
            return writer, report

    def _catch_up(self, writer: Writer) -> OpenReport:
        before, position = self.state.view, writer.position
        if before.place.position > position:
            raise BeyondEnd(
                "the owner's Open is below the position that the standby has followed: the ledger lost commits",
                position=before.place.position,
                open_position=position,
                hint="Restore the ledger topic",
            )
        schema = writer.grant.value_schema
        if schema.id != self._schema_id:
            self._rebuild("the table has a newer value schema", position, schema)
        while self.state.view.place.position < position:
            self._step(position)
            if not self._feed.is_answered:
                self._stop.wait(_PAUSE_S)
        if self._schema_id != schema.id:
            self._rebuild("it was rebuilt in another value schema than the table's", position, schema)
        wanted, reached = Wanted.by(writer), self.state.view
        wanted.check_final(self._feed.folded.state)
        place = wanted.place
        if place.losses != reached.place.losses:
            raise DataLoss("a loss was accepted while the standby was promoted", hint="Open the table")
        with self.state.moving():
            reached.state.store.move(place)
        if reached.state is before.state:
            return OpenReport(position=position, from_position=before.place.position)
        return replace(reached.opening, position=position, from_position=None, rows_read=0)

    def _fail(self, error: BaseException) -> None:
        if not self._stop.is_set():
            _LOG.warning("the standby of %s has failed: %s", self.setup.log.name, str(error) or type(error).__name__)
        self.state.fail(error)
        self._feed.close()

    def end(self) -> None:
        """Refuse every read, and release everything, if need be once a step that waits for Kafka or the store ends."""

        def close() -> None:
            with ExitStack() as closing:
                closing.callback(self.setup.close)
                closing.callback(self.lock.release)
                closing.callback(self.state.view.state.close)
                closing.callback(self._feed.close)

        self._stop.set()
        is_free = False
        try:
            self.state.close()
            is_free = self.lock.acquire(timeout=GRACE_S)
        finally:  # Also if the wait is interrupted.
            if is_free:
                close()
            else:
                self._environment.start(lambda: close() if self.lock.acquire() else None)
