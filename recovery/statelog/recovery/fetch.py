"""`Fetch`: reads a state, and then the commits behind it, into a queue, in a thread of its own.

The thread runs ahead of whoever takes from the queue: the state goes to memory or to disk, and the lease is removed as
soon as the last of it was read, however slow the taker is. Live changes wait for room in memory instead, because they
have no end; so a slow follower holds the log back as any other late reader does, up to the cap on leases.

Invariants:
- The tail was read whole, and verified, before the first row of the state is put; each part of a run before its rows.
- Live changes are put after the whole state, commit by commit, in ledger order; a commit only after all that it lists
  was read and verified.
- If a snapshot fails on the way, the next plan is for the same position, and goes on where the last one ended.
- Whatever ends the thread leaves no lease, no file and no client behind.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from threading import Event, Thread

import pyarrow as pa

from statelog.recovery.applied import Place, rest_of
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.live import Live
from statelog.recovery.plan import RecoveryPlan
from statelog.recovery.portion import cut_to_frames, encode_frame
from statelog.recovery.progress import Phase
from statelog.recovery.reading import Reading
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.spill import SpillQueue
from statelog.recovery.spilled_tail import SpilledTail
from statelog.schemas.errors import ClosedError
from statelog.storage.log import Log

__all__ = ["Fetch"]

_SORTED_FRAME_BYTES = 256 * 1024
_OFFER_S = 1.0


class Fetch:
    """Reads what a plan says into `queue`, from `place` on (None: from its start), once it is started.

    With `follow`, which makes the live part out of the plan, it goes on until it is told to stop, and asks for commits
    every `poll_s`. The plan belongs to the thread until that has ended.
    """

    def __init__(
        self,
        log: Log,
        held: HeldPlan,
        settings: RecoverySettings,
        queue: SpillQueue,
        *,
        place: Place | None,
        follow: Callable[[RecoveryPlan], Live] | None,
        poll_s: float,
    ) -> None:
        self._log = log
        self._held = held
        self._settings = settings
        self._place = place
        self._follow = follow
        self._poll_s = poll_s
        self._stop = Event()
        self._fetched = Event()
        self._thread = Thread(target=self._run, name="statelog-fetch", daemon=True)
        self._frame_bytes = settings.frame_bytes
        self.queue = queue
        self.reading: Reading | None = None

    # ---- for the taker's thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is at work, and the plan not to be touched."""
        return self._thread.is_alive()

    @property
    def is_fetched(self) -> bool:
        """Whether the whole state was read and its lease removed; or will never be."""
        return self._fetched.is_set()

    def wait_fetched(self, timeout_s: float | None) -> bool:
        """Wait until the state was fetched; whether it was."""
        return self._fetched.wait(timeout_s)

    def stop(self) -> None:
        """Fetch the rest of the state, and of the commit that is read, and then no more."""
        self._stop.set()

    def abandon(self) -> None:
        """Let go of what is queued and let the thread end, without waiting for it. Idempotent."""
        self._stop.set()
        self.queue.close()

    def close(self) -> None:
        """As `abandon`, and wait for the thread. Idempotent."""
        self.abandon()
        self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        try:
            self._held.use(self._read_state)
            if self._follow is None:
                self._state_is_fetched()
            else:
                with closing(self._follow(self._held.plan)) as live:
                    self._state_is_fetched()
                    self._read_live(live)
            self.queue.end()
        except BaseException as error:  # noqa: BLE001 - the taker raises it
            self.queue.fail(error)
        finally:
            self._state_is_fetched()

    def _state_is_fetched(self) -> None:
        self._held.release()
        self._fetched.set()

    def _read_state(self, plan: RecoveryPlan) -> None:
        if self._place is None or self._place.position != plan.position:
            self._place = Place(plan.position)
        self.reading = Reading(self._log, plan, self._settings, self._beat, opener=self._held.opener)
        with closing(self._tail()) as tail:
            rows = rest_of(self.reading.merged(tail, drop_deletes=True), self._place)
            for batch in cut_to_frames(rows, self._frame_bytes):
                self._put(batch)
        if not self._place.has_state or self._place.is_complete:
            self._place = Place.complete(plan.position)
            self.queue.put(encode_frame(_empty(self.reading.schema), self._place))

    def _put(self, batch: pa.RecordBatch) -> None:
        assert self._place is not None, "reading the state begins with a place"
        place = self._place.after(batch)
        self.queue.put(encode_frame(batch, place))
        self._place = place
        self._held.pin()

    def _beat(self, _: Phase) -> None:
        if self.queue.is_closed:
            raise ClosedError("the stream was closed")
        self._held.renew()

    def _tail(self) -> SpilledTail:
        return SpilledTail(
            fold_bytes=self._settings.fold_bytes, frame_bytes=_SORTED_FRAME_BYTES, open_queue=self._settings.disk_queue
        )

    def _read_live(self, live: Live) -> None:
        place = Place.complete(self._held.plan.position)
        while not self._stop.is_set():
            commits = live.commits()
            for commit in commits:
                with closing(self._tail()) as tail:
                    after = Place.complete(commit.end_position)
                    self._offer_all(live, live.changes(commit, tail, self._check_open), place, after)
                place = after
                live.passed(commit)
                if self._stop.is_set():
                    return
            if not commits:
                self._stop.wait(self._poll_s)

    def _offer_all(self, live: Live, tables: Iterable[pa.Table], before: Place, after: Place) -> None:
        """Only the last frame moves the position on: until then the commit is not applied whole."""
        held = _empty(live.schema)
        for batch in cut_to_frames(tables, self._frame_bytes):
            if held.num_rows:
                before = before.inside_commit(held.num_rows)
                self._offer(live, encode_frame(held, before))
            held = batch
        self._offer(live, encode_frame(held, after))

    def _offer(self, live: Live, data: memoryview) -> None:
        while not self.queue.offer(data, _OFFER_S):
            live.renew()

    def _check_open(self) -> None:
        if self.queue.is_closed:
            raise ClosedError("the stream was closed")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
