"""`Follower`: moves the state of a standby on, commit by commit, as its owner commits; and hands it to the new owner.

Each step, what has a state made anew, and what ends it: docs/protocol-table.md, S and P. A thread waits for something
to read, and makes a step; a caller who asks for the newest state makes one now.

Invariants:
- One step at a time, and none while the standby is promoted: each holds `lock`.
- Before the new owner's Open stands, a failure changes nothing: the standby goes on. After it, it ends the standby.
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
from statelog.reading import planned_anew
from statelog.recovery import recover
from statelog.recovery.changes import PAUSE, CommitFeed
from statelog.schemas.values.schema import ValueSchema
from statelog.tables.setup import TableSetup
from statelog.tables.standbys.followed import FollowedState, StateView
from statelog.tables.state.store import StatePlace
from statelog.tables.state.values import ValueRule
from statelog.tables.state_opener import KeptState, OpenReport, StateOpener, Unfit, Wanted

_LOG = logging.getLogger("statelog.tables")

_LEAST_PAUSE = 0.1
"""The pause behind a step that took longer than its interval, as a part of that."""
_PAUSE_S = 0.05
_Release: TypeAlias = Callable[[StatePlace], Unfit]
"""Closes the state in use, for one that was made at this place, and says why."""
_Begun: TypeAlias = tuple[CommitFeed, StateView]


class Follower:
    """Follows the newest state from now on. `poll_s` None: no thread, the steps are the caller's."""

    def __init__(self, setup: TableSetup, poll_s: float | None) -> None:
        self.setup = setup
        self.lock = Lock()
        """Held during a step."""
        self._environment = setup.environment
        self._poll_s = poll_s
        self._stop = Event()
        self._feed, view = planned_anew(lambda: self._begun(0, None, None))
        self.state = FollowedState(view, self._environment.clock)

    # ---- the thread

    def start(self) -> None:
        """Follow on a thread, if there is an interval."""
        self._keep_spare()
        if self._poll_s is not None:
            self._environment.start(partial(self._run, self._poll_s))

    def _run(self, pace_s: float) -> None:
        """Raises nothing: the state says what went wrong."""
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
                except BaseException as error:  # noqa: BLE001 - whoever reads is told
                    self._fail(error)
                    break
            # A step that took long made the next one long. Who waits for the lock gets it in between.
            wait_s = max(pace_s * PAUSE - (self._environment.clock() - began_s), pace_s * _LEAST_PAUSE)

    def _rest(self, wait_s: float) -> bool:
        """Wait until the next step may be made, and then for something to read, or for a reader who looks at the age.
        Return whether it is over.
        """
        if not self._stop.wait(wait_s):
            self._feed.wait(lambda: self._stop.is_set() or self.state.is_called)
        return self._stop.is_set()

    def _keep_spare(self) -> None:
        """Have a producer ready for a promotion, as long as Kafka answers."""
        if self._feed.is_answered:
            self.setup.log.warm_producer.keep(self._environment.clock())

    # ---- steps; their caller holds the lock

    @contextmanager
    def _turn(self) -> Generator[None]:
        """Between two steps. Raises BrokerUnavailable if one takes too long, and why the state ended, if it did."""
        timeout_s = self.setup.settings.recovery.stall_timeout_s
        if not self.lock.acquire(timeout=timeout_s):
            raise BrokerUnavailable("the standby waits for Kafka or the store to go on", waited_s=timeout_s)
        try:
            self.state.check()
            yield
        finally:
            self.lock.release()

    def refresh(self) -> bool:
        """A step now; whether the state is level with what the ledger's end was then.

        Raises Damaged, Fenced, Unavailable, which end the standby; BrokerUnavailable if another step takes too long.
        """
        with self._turn():
            try:
                self._step(None)
                self._keep_spare()
            except BaseException as error:
                self._fail(error)
                raise
            return self._feed.is_answered

    def _step(self, end_position: int | None) -> None:
        """Ask, read, move, pass: up to the ledger's end now, or to a position that is known to be there."""
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
        """Why the state has to be rebuilt; empty if it does not."""
        feed, asked_s = self._feed, self._environment.clock()
        commits = feed.commits(end_position)
        if not feed.is_answered:
            return ""
        self._environment.crash("asked")
        if len(feed.folded.state.accepted) != self.state.view.place.losses:
            return "a loss was accepted since, and what was lost may be in it"
        with closing(feed.changes(commits, self._check_wanted)) as tables:
            first = next(tables, None)  # By now all of it was read.
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
        """Raise ClosedError once it was told to end: a state may take hours to make."""
        if self._stop.is_set():
            raise ClosedError("the standby was closed")

    # ---- a state is made

    def _rebuild(self, reason: str, at_least: int, schema: ValueSchema | None = None) -> None:
        """Rebuild the state, from the newest snapshot and the tail, beside the one that is read meanwhile."""
        _LOG.warning("the standby of %s is made anew: %s", self.setup.log.name, reason)
        old = self.state.view
        at_least = max(at_least, old.place.position)
        self._feed.close()
        with ExitStack() as moving:

            def release(place: StatePlace) -> Unfit:
                self._check_wanted()
                moving.enter_context(self.state.moving())
                old.state.close()
                return Unfit(reason, has_lost=old.place.may_have_lost(place))

            self._feed, self.state.view = planned_anew(lambda: self._begun(at_least, schema, release))
        self._environment.crash("rebuilt")

    def _begun(self, at_least: int, schema: ValueSchema | None, release: _Release | None) -> _Begun:
        """The newest state, at a position or above it, with values of this schema (None: the newest), and its feed.
        `release` if it is made beside another. Raises NotFound, OffsetGone, Damaged, StorageFull, Unavailable.
        """
        setup, level_s = self.setup, self._environment.clock()
        feed: CommitFeed  # Of what the recovery leaves, and so made behind it.

        def beat(*_: object) -> None:
            self._check_wanted()
            feed.renew()

        recovery = setup.environment.run(
            recover,
            setup.log,
            key_groups=setup.keys.owned,
            at_least=at_least,
            on_progress=beat,
            settings=replace(setup.settings.recovery, value_schema_id=None if schema is None else schema.id),
        )
        plan, values = recovery.plan, ValueRule(recovery.value_schema)
        feed = CommitFeed(setup.log, plan, setup.keys.owned, setup.settings.recovery, setup.environment)
        with undone_by_errors(feed.close), recovery:
            place = StatePlace.folded(plan.place, plan.state)
            opener = StateOpener(setup, Wanted(place=place, values=values, recovery=recovery), beat=beat)
            state, report = opener.open(KeptState(in_use=release) if release else KeptState.found(setup, values))
        return feed, StateView(
            state=state,
            place=place,
            last_commit=plan.state.last_commit(setup.owner),
            level_s=level_s,
            opening=report,
        )

    # ---- the new owner

    def promote(self) -> tuple[Writer, OpenReport]:
        """The owner of the state, which is that at its Open, and how it came there. Raises Fenced, OutcomeUnknown,
        ConfigError, Unavailable, and then the standby goes on; behind its Open Damaged, Fenced, Unavailable, and then
        it has failed.
        """
        setup, environment = self.setup, self._environment
        with self.state.without_scans(), self._turn():
            writer = setup.writer()
            try:
                environment.crash("promoting")
                report = self._catch_up(writer)
                environment.crash("promoted")
                self._stop.set()
                self.state.let_go("promoted")
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
                "the owner's Open stands below what the standby has followed",
                position=before.place.position,
                open_position=position,
                hint="The ledger lost records that were committed: restore the topic",
            )
        schema = writer.grant.value_schema
        if schema.id != self._schema_id:
            self._rebuild("the table has a newer value schema", position, schema)
        while self.state.view.place.position < position:
            self._step(position)
            if not self._feed.is_answered:
                self._stop.wait(_PAUSE_S)
        if self._schema_id != schema.id:
            self._rebuild("it was made anew in another value schema than the table's", position, schema)
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
        """Answer no read any more, and release everything: now, or once Kafka or the store lets the thread go on."""

        def close() -> None:
            with ExitStack() as closing:
                closing.callback(self.setup.close)
                closing.callback(self.lock.release)
                closing.callback(self.state.view.state.close)
                closing.callback(self._feed.close)

        self._stop.set()
        is_free = False
        try:
            self.state.let_go()
            is_free = self.lock.acquire(timeout=GRACE_S)
        finally:  # Of who waits and is interrupted, too.
            if is_free:
                close()
            else:
                self._environment.start(lambda: close() if self.lock.acquire() else None)
