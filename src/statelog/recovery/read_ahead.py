"""`ReadAhead`: reads a state and the commits behind it into a queue, in a thread of its own.

The thread runs ahead of the consumer of the queue: the state goes to memory or to disk, and the lease is removed as
soon as the last of it was read, however slow the consumer is. Live changes wait for room in memory instead, because
they have no end; so a slow follower holds the log back as any other late reader does, up to the cap on leases.

Invariants:
- The tail was read whole, and verified, before the first row of the state is put; each part of a run before its rows.
- Live changes are put after the whole state, commit by commit, in ledger order; a commit only after all that it lists
  was read and verified.
- If a snapshot fails on the way, the next plan is for the same position, and goes on where the last one ended.
- Whatever ends the thread leaves no lease, no file and no client behind.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import closing
from threading import Event

import pyarrow as pa

from statelog.closing import OwnProcess
from statelog.environment import GRACE_S, begin
from statelog.errors import ClosedError, StorageFull, Unavailable
from statelog.reading.hold import HeldPlan
from statelog.reading.plan import Plan
from statelog.reading.replay import RetryWindow
from statelog.reading.sorted_tail import cut_to_frames
from statelog.recovery.commit_feed import CommitFeed
from statelog.recovery.cursor import Applied, Cursor, encode_frame, rest_of
from statelog.recovery.plan_reader import Beat, PlanReader
from statelog.recovery.settings import RecoverySettings, memory_queue

_OFFER_S = 1.0


class ReadAhead:
    """Reads the state of a claimed plan into `queue`, from where `resume` got to (None: from its start), once started.

    With `poll_s` it goes on with the commits behind it until it is told to stop, and asks for more that often. The plan
    belongs to the thread until that has ended; `let_go` releases it, and what
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
        self.queue = memory_queue(settings, held.environment.open_spill_file)
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
        with closing(self.reader.open_tail()) as tail:
            rows = rest_of(self.reader.merged(tail, drop_deletes=True), self._applied)
            for batch in cut_to_frames(rows, self._frame_bytes):
                self._put(batch)
        if not self._applied.has_state or self._applied.is_complete:
            self._applied = Applied.complete(plan.place)
            self.queue.put(encode_frame(_empty(self.reader.schema), self._applied))

    def _put(self, batch: pa.RecordBatch) -> None:
        assert self._applied is not None, "reading the state begins with a place"
        applied = self._applied.after(batch)
        self._queue(encode_frame(batch, applied))
        self._applied = applied
        self._held.pin()

    def _queue(self, data: memoryview) -> None:
        """Put a frame; if the disk is full, and `waits_for_room`, wait until the consumer has drained it."""
        try:
            self.queue.put(data)
        except StorageFull:
            if not self._settings.waits_for_room:
                raise
            while not self.queue.offer(data, _OFFER_S):
                self._held.renew()

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
            for commit in commits:
                after = Applied.complete(commit.place)
                with closing(feed.changes([commit], self._check_open)) as tables:
                    self._offer_all(feed, tables, applied, after)
                applied = after
                feed.passed([commit])
                if self._stop.is_set():
                    return
            if not commits:
                self._stop.wait(poll_s)

    def _offer_all(self, feed: CommitFeed, tables: Iterable[pa.Table], before: Applied, after: Applied) -> None:
        """Only the last frame moves the position on: until then the commit is not applied whole."""
        held = _empty(feed.schema)
        for batch in cut_to_frames(tables, self._frame_bytes):
            if held.num_rows:
                before = before.inside_commit(held.num_rows)
                self._offer(feed, encode_frame(held, before))
            held = batch
        self._offer(feed, encode_frame(held, after))

    def _offer(self, feed: CommitFeed, data: memoryview) -> None:
        while not self.queue.offer(data, _OFFER_S):
            feed.renew()

    def _check_open(self) -> None:
        if self.queue.is_closed:
            raise ClosedError("the stream was closed")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
