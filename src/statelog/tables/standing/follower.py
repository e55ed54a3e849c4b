"""`Follower`: moves the state of a standby on, commit by commit, as its owner commits.

    1  ask      what was committed since: the ledger up to its end
    2  read     the newest change of each key of it, whole and verified
    3  move     the state takes it, and the place behind it, while no read is under way
    4  pass     the lease holds the log from there on

A step does all four; a thread makes one every `poll_s`, and whoever asks for the newest state makes one at once. The
follower also keeps a spare producer, so that a promotion does not wait for a client to connect.

Invariants:
- One step at a time, and none while the standby is promoted: each holds `lock`.
- Nothing of a commit reaches the state before all of it was read and verified.
- A state that cannot be followed any more (the log was truncated past it, a loss was accepted, there are values of a
  newer schema) is made anew, loudly. Whatever else goes wrong ends the follower, and every read says why.
"""

import logging
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from threading import Event, Lock

import pyarrow as pa

from statelog.environment import GRACE_S, Environment
from statelog.errors import BrokerUnavailable, ClosedError, IncompatibleSchema, OffsetGone
from statelog.producer.guard import Life
from statelog.recovery.streaming.commit_feed import CommitFeed
from statelog.schemas.values.schema import ValueSchema
from statelog.tables.standing.building import Builder, Built
from statelog.tables.standing.followed import FollowedState
from statelog.tables.state.record import StatePlace

__all__ = ["Follower"]

_LOG = logging.getLogger("statelog.tables")

_LEAST_PAUSE = 0.1
"""Of a pace: the pause behind a step that took longer."""


class _CannotFollow(Exception):
    """The state has to be made anew; the message says why."""


class Follower:
    """Follows from a built state on. `poll_s` None: no thread, the steps are the caller's."""

    def __init__(self, builder: Builder, built: Built, poll_s: float | None, environment: Environment) -> None:
        self.state = FollowedState(built.version(), environment.clock)
        self.lock = Lock()
        """Held by whoever makes a step."""
        self.builder = builder
        self._feed = built.feed
        self._poll_s = poll_s
        self._environment = environment
        self._stop = Event()

    @property
    def feed(self) -> CommitFeed:
        """What is followed. For who holds the lock."""
        return self._feed

    # ---- the thread

    def start(self) -> None:
        """Follow on a thread, if there is a pace."""
        self._keep_spare()
        if self._poll_s is not None:
            pace_s = self._poll_s
            self._environment.start(lambda: self._run(pace_s))

    def _run(self, pace_s: float) -> None:
        """Raises nothing: the state says what went wrong."""
        wait_s = pace_s
        while not self._stop.wait(wait_s):
            with self.lock:
                if self._stop.is_set() or self.state.life is not Life.OPEN:
                    break
                began_s = self._environment.clock()
                try:
                    self.step()
                    self._keep_spare()
                except BaseException as error:  # noqa: BLE001 - whoever reads is told
                    self._fail(error)
                    break
            # A step that took long made the next one long. Who waits for the lock gets it in between.
            wait_s = max(pace_s - (self._environment.clock() - began_s), pace_s * _LEAST_PAUSE)

    def _keep_spare(self) -> None:
        """Have a producer ready for a promotion, as long as Kafka answers."""
        if self._feed.is_answered:
            self.builder.log.spare.keep(self._environment.clock())

    def stop(self) -> None:
        """Make no more steps. The one that is under way ends by itself."""
        self._stop.set()

    def pause(self, seconds: float) -> None:
        """Wait, unless it is stopped."""
        self._stop.wait(seconds)

    # ---- steps; their caller holds the lock

    def refresh(self, timeout_s: float) -> bool:
        """A step now; whether the state is level with what the ledger's end was then. Raises as a read does."""
        if not self.lock.acquire(timeout=timeout_s):
            raise BrokerUnavailable("the standby waits for Kafka or the store to go on", waited_s=timeout_s)
        try:
            self.state.check()
            try:
                self.step()
                self._keep_spare()
            except BaseException as error:
                self._fail(error)
                raise
            return self._feed.is_answered
        finally:
            self.lock.release()

    def step(self, end_position: int | None = None) -> None:
        """Ask, read, move, pass: up to the ledger's end now, or to a position that is known to be there."""
        try:
            self._step(end_position)
        except (OffsetGone, _CannotFollow) as error:
            self.rebuild(getattr(error, "message", str(error)), end_position or 0)
        except IncompatibleSchema as error:
            if self.builder.log.value_schemas.newest().id == self.state.version.values.schema.id:
                raise
            self.rebuild(error.message, end_position or 0)

    def _step(self, end_position: int | None) -> None:
        feed, asked_s = self._feed, self._environment.clock()
        commits = feed.commits(end_position)
        if not feed.is_answered:
            return
        self._environment.crash("asked")
        if feed.losses != self.state.version.place.losses:
            raise _CannotFollow("a loss was accepted since, and what was lost may be in it")
        with closing(feed.changes(commits, self._check_wanted)) as tables:
            first = next(tables, None)  # By now all of it was read.
            if feed.value_schema.id != self.state.version.values.schema.id:
                raise _CannotFollow("there are values of a newer schema")
            if commits:
                self._environment.crash("read")
            self._move(tables if first is None else chain([first], tables), asked_s)
        feed.passed(commits)
        self._environment.crash("followed")

    def _move(self, rows: Iterable[pa.Table], asked_s: float) -> None:
        """Give the state what was read, and the place that it leads to."""
        feed, old = self._feed, self.state.version
        moved = replace(
            old,
            place=StatePlace(feed.asked_place, old.place.losses),
            last_commit=feed.last_commit(self.builder.owner),
            level_s=asked_s,
        )
        if moved.place == old.place:
            self.state.version = moved
            return
        with self.state.moving():
            for table in rows:
                old.state.load(table)
            self._environment.crash("loaded")
            old.state.move(moved.place)
            self.state.version = moved

    def _check_wanted(self) -> None:
        if self.state.life is Life.CLOSED:
            raise ClosedError("the standby was closed")

    def rebuild(self, reason: str, at_least: int, schema: ValueSchema | None = None) -> None:
        """Make the state anew, from the newest snapshot and the tail, beside the one that is read meanwhile."""
        _LOG.warning("the standby of %s is made anew: %s", self.builder.log.name, reason)
        old = self.state.version
        self._feed.close()
        built = self.builder.build(at_least=max(at_least, old.place.position), schema=schema, is_beside=True)
        self._feed = built.feed
        with self.state.moving():
            old.state.close()
            self.state.version = built.replace(reason)
        self._environment.crash("rebuilt")

    def _fail(self, error: BaseException) -> None:
        if self.state.life is not Life.CLOSED:
            what = str(error) or type(error).__name__
            _LOG.warning("the standby of %s has failed: %s", self.builder.log.name, what)
        self.state.fail(error)
        self._feed.close()

    # ---- end

    def end(self) -> None:
        """Stop, and release what the follower needs no more: now, or once Kafka or the store lets the thread go on."""
        self._stop.set()
        self.state.break_scans()

        def close() -> None:
            with ExitStack() as closing:
                closing.callback(self.builder.release)
                closing.callback(self.lock.release)
                closing.callback(self.state.version.state.close)
                closing.callback(self._feed.close)

        if self.lock.acquire(timeout=GRACE_S):
            close()
        else:
            self._environment.start(lambda: close() if self.lock.acquire() else None)
