"""`Stream`: the state of a log in portions, and then every later commit, if it follows.

    with recover(log).stream() as stream:
        for changes, cursor in stream:
            target.apply(changes)             # columns key_group, op, key, value
            checkpoint.save(cursor.to_json())

A portion counts as applied once the next one is asked for. Belongs to one thread; `stop` may be called from any.
`ReadAhead` reads into the stream's queue, in a thread of its own that runs ahead of the consumer: the state goes to
memory or to disk, and the lease is removed as soon as the last of it was read, however slow the consumer is. Live
changes wait for room in memory instead, because they have no end; so a slow follower holds the log back as any other
late reader does, up to the cap on leases.

Invariants:
- Portions come in order: the state by (key group, key), an empty portion that says that it is complete, then commits.
  A commit may take several; `cursor.is_complete` says where the reader has the state of a position, and no part more.
- Every portion is right: the tail was read whole, and verified, before the first row of the state is queued, each part
  of a run before its rows, and a commit once all that it lists was. But the state is only whole when
  `cursor.is_complete` says so: after an error in between, the reader has a part of it, and goes on with
  `recover(log, resume=cursor)`.
- If a snapshot fails on the way, the next plan is for the same position, and goes on where the last one ended.
- Closed, dropped or failed, it leaves no lease, no client and no byte on the disk. Dropped, it warns as a file does.
- A fork of the process that made it neither uses nor closes it.
"""

import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager
from itertools import groupby
from threading import Event
from typing import NamedTuple

import pyarrow as pa

from statelog.closing import Closing, OwnProcess
from statelog.environment import GRACE_S, begin
from statelog.errors import ClosedError, StorageFull, Unavailable
from statelog.reading import HeldPlan, Plan, RetryWindow, cut_to_frames
from statelog.recovery.changes import PAUSE, CommitFeed
from statelog.recovery.cursor import Applied, Cursor, decode_frame, encode_frame, rest_of
from statelog.recovery.plan_reader import Beat, Phase, PlanReader
from statelog.recovery.progress import Monitor
from statelog.recovery.settings import RecoverySettings
from statelog.store.disk.spill_queue import SpillQueue, SpillStatistics

_UNCLOSED = "unclosed stream of statelog: close it, or take from it in a with block"
_OFFER_S = 1.0


class ReadAhead:
    """Reads the state of a claimed plan into `queue`, from where `resume` got to (None: from its start), once started.

    With `poll_s` it goes on with the commits behind it until it is told to stop, each read within that time. The plan
    belongs to the thread until that has ended, which leaves nothing behind; `let_go` releases it, and what
    `make_reader` reads through. `origin` is what is applied before the first portion. Raises ConfigError.
    """

    def __init__(
        self,
        held: HeldPlan,
        settings: RecoverySettings,
        make_reader: Callable[[Plan, Beat], PlanReader],
        let_go: Callable[[], None],
        resume: Cursor | None,
        *,
        poll_s: float | None,
    ) -> None:
        self._held = held
        self._settings = settings
        self._make_reader = make_reader
        self._let_go = let_go
        self._poll_s = poll_s
        self._applied = None if resume is None else resume.applied
        self._stop = Event()
        self.fetched = Event()
        """Set once the whole state was read and its lease removed; or never will be."""
        self._running: Future[None] | None = None
        self._frame_bytes = settings.frame_bytes
        self.owner = OwnProcess("the stream")
        self.origin = resume or Cursor(
            identity=held.log.descriptor.identity, applied=Applied(held.plan.place), key_groups=held.plan.key_groups
        )
        self.queue = SpillQueue(
            memory_bytes=settings.memory_bytes,
            segment_bytes=settings.segment_bytes,
            directories=settings.directories,
            open_file=held.environment.open_spill_file,
        )
        self.reader: PlanReader | None = None

    # ---- for the consumer's thread

    def start(self) -> None:
        """Start the thread."""
        self._running = begin(self._held.environment.start, self._run)

    @property
    def is_running(self) -> bool:
        """Whether the thread is at work, and the plan not to be touched."""
        return self._running is not None and not self._running.done() and not self.owner.is_foreign

    def stop(self) -> None:
        """Fetch the rest of the state, and of the commit that is read, and then no more."""
        self._stop.set()

    def abandon(self) -> None:
        """Release what is queued and let the thread end, without waiting for it. Idempotent; void in a fork."""
        if self.owner.is_foreign:
            return  # The thread is not here, and may have held the queue's lock when it was left behind.
        self._stop.set()
        self.queue.close()

    def close(self) -> None:
        """As `abandon`, and wait for the thread, but not for a broker or a store that does not answer it.

        Then it ends by itself, once it is answered or gives up, and removes the lease. Idempotent; void in a fork.
        """
        self.abandon()
        if self._running is not None and not self.owner.is_foreign:
            wait([self._running], GRACE_S)

    # ---- in the thread

    def _run(self) -> None:
        """Raises nothing: the queue hands on what went wrong."""
        try:
            self._held.carry_out(self._read_plan)
            if self._poll_s is None:
                self._state_is_fetched()
            else:
                self._follow_on(self._poll_s)
            self.queue.end()
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self.queue.fail(error)
        finally:
            self._state_is_fetched()

    def _state_is_fetched(self) -> None:
        self._let_go()
        self.fetched.set()

    def _read_plan(self, plan: Plan) -> None:
        if self._applied is None or self._applied.place.position != plan.position:
            self._applied = Applied(plan.place)
        self.reader = self._make_reader(plan, lambda _: self._check_open())
        with closing(self.reader.sorted_tables()) as tables:
            for batch in cut_to_frames(rest_of(tables, self._applied), self._frame_bytes):
                self._put(batch)
        if not self._applied.has_state or self._applied.is_complete:
            self._applied = Applied.complete(plan.place)
            self.queue.put(encode_frame(_empty(self.reader.converter.schema), self._applied))

    def _put(self, batch: pa.RecordBatch) -> None:
        """Queue rows of the state; if the disk is full, and `waits_for_room`, once the consumer has drained it."""
        assert self._applied is not None, "reading the state begins with a place"
        applied = self._applied.after(batch)
        data = encode_frame(batch, applied)
        try:
            self.queue.put(data)
        except StorageFull:
            if not self._settings.waits_for_room:
                raise
            self._offer(data, self._held.renew)
        self._applied = applied
        self._held.pin()

    def _follow_on(self, poll_s: float) -> None:
        """Take over the log from the state's lease, which stands while the store is away for a moment, and read on."""

        def pause(timeout_s: float) -> bool:
            self._held.renew()
            return self._stop.wait(timeout_s)

        held = self._held
        retries = RetryWindow(self._settings.lease_ttl_s, held.environment.clock)
        try:
            feed = retries.call(
                lambda: CommitFeed(held.log, held.plan, self.origin.key_groups, self._settings, held.environment), pause
            )
        except Unavailable:
            if self._stop.is_set():
                return
            raise
        with closing(feed):
            self._state_is_fetched()
            self._read_feed(feed, poll_s)

    def _read_feed(self, feed: CommitFeed, poll_s: float) -> None:
        applied = Applied.complete(self._held.plan.place)
        while not self._stop.is_set():
            commits = feed.commits()
            for place, group in groupby(commits, key=lambda one: one.place):
                after, mine = Applied.complete(place), list(group)  # Those of one record have one place.
                with closing(feed.changes(mine, self._check_open)) as tables:
                    self._offer_all(feed, tables, applied, after)
                applied = after
                feed.passed(mine)
                if self._stop.is_set():
                    return
            if not commits and not self._stop.wait(poll_s * PAUSE):
                feed.wait(self._stop.is_set)

    def _offer_all(self, feed: CommitFeed, tables: Iterable[pa.Table], before: Applied, after: Applied) -> None:
        """Only the last frame moves the position on: until then the commit is not applied whole."""
        held = _empty(feed.converter.schema)
        for batch in cut_to_frames(tables, self._frame_bytes):
            if held.num_rows:
                before = before._replace(rows=before.rows + held.num_rows)
                self._offer(encode_frame(held, before), feed.renew)
            held = batch
        self._offer(encode_frame(held, after), feed.renew)

    def _offer(self, data: memoryview, renew: Callable[[], object]) -> None:
        while not self.queue.offer(data, _OFFER_S):
            renew()

    def _check_open(self) -> None:
        if self.queue.is_closed:
            raise ClosedError("the stream was closed")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


class Portion(NamedTuple):
    """Changes (key_group, op, key, value) to apply in order, and how far the reader is once it has applied them.

    A portion may be empty: then the state is complete, or a commit changed nothing.
    """

    changes: pa.Table
    cursor: Cursor


class Stream(Closing):
    """Made by `Recovery.stream` and `Recovery.follow`. Its monitor is used in the consumer's thread."""

    def __init__(self, read_ahead: ReadAhead, monitor: Monitor) -> None:
        self._read_ahead = read_ahead
        self._monitor = monitor
        self._cursor = read_ahead.origin
        self._handed_out: Cursor | None = None
        self._rows = 0
        self._has_ended = False
        read_ahead.start()
        self._forgotten = weakref.finalize(self, _drop_forgotten, read_ahead)

    # ---- taking

    def take(self, timeout_s: float | None = None) -> Portion | None:
        """The next portion; None if there is none, or none came in time: `has_ended` tells which.

        What was taken before counts as applied.
        Raises DataLoss, Damaged, Unavailable, StorageFull if fetching did, and ClosedError.
        """
        self._read_ahead.owner.check()
        queue, again = self._read_ahead.queue, None
        if self._handed_out is not None:
            self._cursor, self._handed_out = self._handed_out, None
        else:
            again = queue.in_hand  # Ctrl-C, or an error of `on_progress`, kept it from being handed out.
        if self._has_ended:
            return None
        data = again or queue.take(timeout_s)
        if data is None:
            if queue.is_drained:
                self._has_ended = True
                self.close()
            return None
        changes, applied = decode_frame(data)
        self._count(changes.num_rows, applied)
        self._handed_out = self._at(applied)
        return Portion(changes, self._handed_out)

    def __iter__(self) -> Iterator[Portion]:
        return self

    def __next__(self) -> Portion:
        portion = self.take()
        if portion is None:
            raise StopIteration
        return portion

    def apply(self, callback: Callable[[Portion], object]) -> Cursor:
        """Call `callback` with each portion, in this thread; returns what was applied at the end.

        Whatever the callback raises closes the stream, and is raised.
        """
        with self:
            for portion in self:
                callback(portion)
        return self._cursor

    # ---- where it is

    @property
    def cursor(self) -> Cursor:
        """What counts as applied: everything before the portion that was taken last."""
        return self._cursor

    @property
    def has_ended(self) -> bool:
        """Whether the last portion was taken."""
        return self._has_ended

    def wait_fetched(self, timeout_s: float | None = None) -> bool:
        """Wait until the whole state was read, and log and store are not needed for it any more, or fetching failed;
        False if it takes longer.
        """
        return self._ahead.fetched.wait(timeout_s)

    def statistics(self) -> SpillStatistics:
        """What lies in memory and on the disk."""
        return self._ahead.queue.statistics()

    @contextmanager
    def pending(self) -> Generator[Iterator[Portion]]:
        """What was fetched and is not applied, as it is now, the portion taken last first: for an own checkpoint.

        Its segments stay on the disk until the context is left, also if the stream goes on, or is closed.
        """
        view = self._ahead.queue.view()
        try:
            yield (Portion(changes, self._at(applied)) for changes, applied in map(decode_frame, view))
        finally:
            view.close()

    # ---- life

    def stop(self) -> None:
        """End a stream that follows: what was fetched still comes out, and then nothing."""
        self._ahead.stop()

    def close(self) -> None:
        """Release everything that was fetched, and wait until the thread has ended. Idempotent; void in a fork."""
        self._forgotten.detach()
        self._read_ahead.close()

    @property
    def _ahead(self) -> ReadAhead:
        self._read_ahead.owner.check()
        return self._read_ahead

    def _count(self, rows: int, applied: Applied) -> None:
        if self._cursor.applied.has_state:
            return
        reader = self._read_ahead.reader
        assert reader is not None, "a portion of a state was read from somewhere"
        if applied.is_complete:
            self._monitor.done(reader, self._rows + rows)
        else:
            phase = Phase.LOAD if self._read_ahead.fetched.is_set() else Phase.READ
            self._monitor.report(reader, phase, reader.share_through(applied.next_key_group))
        self._rows += rows

    def _at(self, applied: Applied) -> Cursor:
        start = self._cursor
        return Cursor(identity=start.identity, applied=applied, key_groups=start.key_groups)


def _drop_forgotten(read_ahead: ReadAhead) -> None:
    """Clean up after a stream that was dropped without a close, and say so. In a fork it is the parent's."""
    if not read_ahead.owner.is_foreign:
        read_ahead.abandon()
        warnings.warn(_UNCLOSED, ResourceWarning, stacklevel=1)
