"""`Stream`: the state of a log in portions, and then every later commit, if it follows.

    with recover(log).stream() as stream:
        for changes, cursor in stream:
            target.apply(changes)             # columns key_group, op, key, value
            checkpoint.save(cursor.to_json())

A portion counts as applied once the next one is taken. Belongs to one thread; `stop` may be called from any.

`ReadAhead` reads into the stream's queue in its own thread, ahead of the consumer. The state goes to memory or to disk,
and the lease is removed as soon as it was read, however slow the consumer is. Live changes have no end, so they wait
for room in memory instead: a slow follower delays truncation like any late reader, up to the cap on leases.

Invariants:
- Portions come in order: the state by (key group, key), an empty portion that completes it, then commits. A commit may
  take several portions. `cursor.is_complete` marks exactly the state of a position.
- Every portion is verified before it is queued: the whole tail before the first row of the state, each part of a run
  before its rows, and a whole commit before its changes.
- Before `cursor.is_complete`, the reader has a part of the state. After an error, `recover(log, resume=cursor)`
  continues from there.
- If a snapshot fails, the next plan is for the same position, and continues where the last one ended.
- A closed, dropped or failed stream leaves no lease, no client and no byte on the disk. A dropped one also warns, like
  a file.
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
from statelog.errors import ClosedError, Unavailable
from statelog.reading import HeldPlan, Plan, RetryWindow, cut_to_frames
from statelog.recovery.changes import PAUSE, CommitFeed
from statelog.recovery.cursor import Applied, Cursor, decode_frame, encode_frame, rest_of
from statelog.recovery.plan_reader import OnStep, Phase, PlanReader
from statelog.recovery.progress import Monitor
from statelog.recovery.settings import RecoverySettings, tuning_of
from statelog.schemas.changes.due import shown
from statelog.store.disk.spill_queue import SpillQueue, SpillStatistics

_UNCLOSED = "unclosed stream of statelog: close it, or take from it in a with block"
_OFFER_S = 1.0


class ReadAhead:
    """Reads the state of a claimed plan into `queue`, from the cursor `resume` (None: from its start), once started.

    `poll_s`: continue with the later commits, each read within that time, until `stop`.
    `release`: releases the plan and the resources of `make_reader`. The plan belongs to the thread until its end.

    `origin` is the cursor before the first portion. Raises ConfigError.
    """

    def __init__(
        self,
        held: HeldPlan,
        settings: RecoverySettings,
        make_reader: Callable[[Plan, OnStep], PlanReader],
        release: Callable[[], None],
        resume: Cursor | None,
        *,
        poll_s: float | None,
    ) -> None:
        self._held = held
        self._settings = settings
        self._make_reader = make_reader
        self._release = release
        self._poll_s = poll_s
        self._applied = None if resume is None else resume.applied
        self._stop = Event()
        self.fetched = Event()
        """Set once the whole state was read and its lease removed, or reading failed."""
        self._running: Future[None] | None = None
        self._frame_bytes = settings.frame_bytes
        self.owner = OwnProcess("the stream")
        self.origin = resume or Cursor(
            identity=held.log.descriptor.identity, applied=Applied(held.plan.place), key_groups=held.plan.key_groups
        )
        self.queue = SpillQueue(
            memory_bytes=settings.memory_bytes,
            segment_bytes=tuning_of(settings).segment_bytes,
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
        """Whether the thread is running and owns the plan."""
        return self._running is not None and not self._running.done() and not self.owner.is_foreign

    def stop(self) -> None:
        """Fetch the rest of the state, or of the current commit, and then end."""
        self._stop.set()

    def abandon(self) -> None:
        """Release the queue and end the thread, without waiting for it. Idempotent; void in a fork."""
        if self.owner.is_foreign:
            return  # The thread does not exist here, but may have held the queue's lock at the fork.
        self._stop.set()
        self.queue.close()

    def close(self) -> None:
        """Release the queue and wait briefly for the end of the thread. Idempotent; void in a fork.

        A thread that waits for a broker or store ends by itself, after an answer or its timeout, and removes the lease.
        """
        self.abandon()
        if self._running is not None and not self.owner.is_foreign:
            wait([self._running], GRACE_S)

    # ---- in the thread

    def _run(self) -> None:
        """Read everything. Raises nothing: the queue passes errors to the consumer."""
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
        self._release()
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
        """Queue rows of the state."""
        assert self._applied is not None, "reading the state begins with a place"
        applied = self._applied.after(batch)
        self.queue.put(encode_frame(batch, applied))
        self._applied = applied
        self._held.pin()

    def _follow_on(self, poll_s: float) -> None:
        """Take a lease for the commits while the state's lease holds, with retries, and read on."""

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
                after, mine = Applied.complete(place), list(group)  # Commits of one record share their place.
                with closing(feed.changes(mine, self._check_open)) as tables:
                    self._offer_all(feed, tables, applied, after)
                applied = after
                feed.passed(mine)
                if self._stop.is_set():
                    return
            if not commits and not self._stop.wait(poll_s * PAUSE):
                feed.wait(self._stop.is_set)

    def _offer_all(self, feed: CommitFeed, tables: Iterable[pa.Table], before: Applied, after: Applied) -> None:
        """Queue the frames of commits. Only the last frame advances the position: until then they are incomplete."""
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
    """Changes to apply in order, and the cursor once they are applied.

    The columns are key_group, op, key, value, and `due` if it was asked for. A portion may be empty: then the
    state is complete, or a commit changed nothing.
    """

    changes: pa.Table
    cursor: Cursor


class Stream(Closing):
    """A stream of portions, made by `Recovery.stream` and `Recovery.follow`. Belongs to the consumer's thread."""

    def __init__(self, read_ahead: ReadAhead, monitor: Monitor, *, due: bool) -> None:
        self._read_ahead = read_ahead
        self._due = due
        self._monitor = monitor
        self._cursor = read_ahead.origin
        self._handed_out: Cursor | None = None
        self._rows = 0
        self._has_ended = False
        read_ahead.start()
        self._forgotten = weakref.finalize(self, _drop_forgotten, read_ahead)

    # ---- taking

    def take(self, timeout_s: float | None = None) -> Portion | None:
        """Take the next portion; None at the end (`has_ended`), or if none came in time. The last one is applied then.

        Raises ClosedError, and the errors of fetching: DataLoss, Damaged, Unavailable, StorageFull.
        """
        self._read_ahead.owner.check()
        queue, again = self._read_ahead.queue, None
        if self._handed_out is not None:
            self._cursor, self._handed_out = self._handed_out, None
        else:
            again = queue.in_hand  # Ctrl-C, or an error of `on_progress`, kept it from the caller.
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
        return Portion(shown(changes, due=self._due), self._handed_out)

    def __iter__(self) -> Iterator[Portion]:
        return self

    def __next__(self) -> Portion:
        portion = self.take()
        if portion is None:
            raise StopIteration
        return portion

    def apply(self, callback: Callable[[Portion], object]) -> Cursor:
        """Call `callback` with each portion, in this thread. Return the last cursor.

        An error of the callback closes the stream, and is raised.
        """
        with self:
            for portion in self:
                callback(portion)
        return self._cursor

    # ---- progress

    @property
    def cursor(self) -> Cursor:
        """The applied changes: everything before the portion that was taken last."""
        return self._cursor

    @property
    def has_ended(self) -> bool:
        """Whether the last portion was taken."""
        return self._has_ended

    def wait_fetched(self, timeout_s: float | None = None) -> bool:
        """Wait until the state no longer needs log and store, or reading failed. Return False if it takes longer."""
        return self._ahead.fetched.wait(timeout_s)

    def statistics(self) -> SpillStatistics:
        """Return the numbers of the portions in memory and on the disk."""
        return self._ahead.queue.statistics()

    @contextmanager
    def pending(self) -> Generator[Iterator[Portion]]:
        """Give the fetched portions that are not applied now, for your own checkpoint. The last taken one comes first.

        Their segments stay on the disk until the context is left, even if the stream goes on or is closed.
        """
        view = self._ahead.queue.view()
        try:
            frames = map(decode_frame, view)
            yield (Portion(shown(changes, due=self._due), self._at(applied)) for changes, applied in frames)
        finally:
            view.close()

    # ---- stop and close

    def stop(self) -> None:
        """End a stream that follows, after the portions that were fetched."""
        self._ahead.stop()

    def close(self) -> None:
        """Release all fetched portions, and wait briefly for the end of the thread. Idempotent; void in a fork."""
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
        assert reader is not None, "a portion of a state has a reader"
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
    """Clean up after a stream that was dropped without a close, and warn. Void in a fork."""
    if not read_ahead.owner.is_foreign:
        read_ahead.abandon()
        warnings.warn(_UNCLOSED, ResourceWarning, stacklevel=1)
