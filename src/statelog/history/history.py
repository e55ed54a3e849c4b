"""`History`: the ledger of one log, followed once by this process, from the newest snapshot on.

It owns the one live fold of a `Log`, the hashes of its records, and a bounded window of its valid commits. Writers,
feeds, plans and rounds ask it; `Replay` folds a past state. It is thread-safe, and has no thread of its own: one of the
threads that wait for newer records reads for all of them, and hands over when it has its own answer.

Invariants:
- A record counts once this fold has read the record itself. A matching offset proves nothing.
- No answer relies on a comparison older than `COMPARE_S`: the records since then are first read again, in one read, and
  each must still be the same.
- A fold that is torn, or has found a loss, is discarded. The next one must agree with the last one's place.
- A missing record is reported as a loss only after the cluster was identified: it may be another one, or a new log.
- A truncated record proves nothing, unless a snapshot of its very place is retained and names the record. Only a
  Restart resolves a loss.
- A client follows the ledger only while verdicts are asked for, or a thread waits. Everything else is read in one go.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import TypeVar
from weakref import WeakValueDictionary

from statelog.closing import Closing
from statelog.errors import BrokerUnavailable, ClosedError, OffsetGone, OutcomeUnknown, StatelogError, Unavailable
from statelog.history.following import Following, Landed, LedgerRate, LedgerView, Window, collector_paused
from statelog.history.shared_follower import SharedFollower
from statelog.history.source import LedgerSource, mismatch, send_record
from statelog.history.together import GroupCommit, add_gathered
from statelog.history.turns import Turns
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange, Producer, Record
from statelog.pending import Pending
from statelog.schemas.ledger.fold import LedgerFold, ValidCommit
from statelog.schemas.ledger.place import ORIGIN, LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, Open, encode
from statelog.schemas.snapshot.manifest import Manifest

T = TypeVar("T")

COMPARE_S = 1.0
"""No answer relies on an older comparison of the folded records."""
_TICK_S = 1e-6
_POLL_S = 0.5
IDENTIFY_S = 60.0
"""How old the cluster's last identification may be while reading."""
_IDLE_S = 60.0
"""How long after the last verdicts the follower is still read."""
_PORTION = 1024


class History(Closing):
    """The ledger of one log, as this process has read it."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._users: list[object] = []
        self._is_closed = False
        self._time_s = -math.inf
        self.rate = LedgerRate(source.clock)
        """How many bytes the ledger carries: every follower of the log reads all of them."""
        self._reset(ORIGIN)

    @classmethod
    def of(cls, source: LedgerSource) -> "History":
        """Return the history of all logs with the same lent client, as a worker's tables have; else a new one. Each log
        closes it.
        """
        client = getattr(source.kafka, "port", source.kafka)
        if not getattr(client, "is_lent", False):
            return cls(source)
        key = id(client), source.identity
        found = _SHARED.get(key)
        if found is None or found._is_closed or found._pid != os.getpid():
            found = _SHARED[key] = cls(source)
        found._users.append(source)
        return found

    def _reset(self, known: Place) -> None:
        self._pid = os.getpid()
        self._turns = Turns()
        self._group = GroupCommit()
        self._lock = self._turns.lock
        self._now: Following | None = None
        self._window = Window(0)
        self._follower = SharedFollower(self._source)
        self._verdicts_s: deque[float] = deque(maxlen=2)
        self._woken_s = -math.inf
        """When a wait last returned that it is time to read."""
        self._known = known
        """The place of an earlier fold that was not yet compared with the present one; else ORIGIN."""
        self._is_lost = False
        """Whether the record of that place is known to be lost, so that a truncation does not hide it."""

    # ---- what is known

    @property
    def place(self) -> Place:
        """The position up to which this process has read the ledger, and the record below it."""
        now = self._now
        if now is not None and self._known is ORIGIN:
            return now.place
        return max(self._known, now.place if now else ORIGIN, key=lambda one: one.position)

    @property
    def has_appended(self) -> bool:
        """Whether this process has appended a record, and asked for its verdict."""
        return bool(self._verdicts_s)

    def ask(self, question: Callable[[LedgerFold], T]) -> T:
        """Answer a question from the fold, which does not change meanwhile. Raises as `read`."""
        with self._settled() as now:
            return question(now.fold)

    def view(self) -> LedgerView:
        """Return the ledger as it was read. Raises as `read`."""
        with self._settled() as now:
            return _view(now)

    def commits(self, after: int, to: int) -> list[ValidCommit] | None:
        """Return the valid commits above one position and up to another; None if the window does not reach back."""
        with self._settled():
            return self._window.between(after, to)

    def since(self, position: int) -> tuple[LedgerView, list[ValidCommit] | None]:
        """Return the ledger as it was read, and its valid commits since a position (None if that is too old)."""
        with self._settled() as now:
            return _view(now), self._window.between(position, now.position)

    def forget(self, position: int) -> None:
        """Drop the commits up to a position, which a snapshot holds, and from which no reader follows."""
        with self._lock:
            self._window.forget(position)

    # ---- read

    def now_s(self) -> float:
        """Return the source's time, increased with every call, so that later comparisons have later times."""
        self._time_s = max(self._source.clock(), math.nextafter(self._time_s, math.inf))
        return self._time_s

    def _lately_s(self) -> float:
        return self._source.clock() - COMPARE_S + _TICK_S

    def read(self, at_least: Place = ORIGIN) -> LedgerView:
        """Read up to the ledger's present end, compare the records read before, and check the place `at_least`.

        Raises BeyondEnd, AnchorMismatch, OffsetGone, IdentityChanged, CorruptLedger, UnknownFormat, Unavailable.
        """
        since_s = self.now_s()
        self.read_to(self.end(at_least.position), since_s)
        self.expect([at_least])
        return self.view()

    def read_to(self, position: int, since_s: float | None = None) -> None:
        """Read up to a position that the ledger has, and compare the records read before, unless that was done since
        `since_s`, by `now_s`; None: within COMPARE_S. Raises as `read`.
        """
        with self._source.checking_cluster():
            self._read_to(position, self._lately_s() if since_s is None else since_s)

    def expect(self, places: Iterable[Place]) -> None:
        """Compare observed places with the ledger; read on if they lie above. Raises as `read`."""
        with self._source.checking_cluster():
            for place in places:
                if place.position > self.place.position:
                    self._read_to(self._end(place.position), self._lately_s())
                self._compare_place(place)
                with self._settled() as now:
                    now.fold.check_followed(place.position)

    def end(self, at_least: int = 0) -> int:
        """Ask for the ledger's end now, which must reach `at_least` and this process's position. Raises as `read`."""
        with self._source.checking_cluster():
            return self._end(at_least)

    def _end(self, at_least: int = 0) -> int:
        known = max(at_least, self.place.position)
        end = self._source.range(at_least=known).end
        if end < known:
            raise self._source.lost("the ledger ends below an observed position", end, known)
        return end

    def wait(self, position: int, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Wait at most `timeout_s` until the ledger has a record at or above a position, or the next comparison is due.
        Return whether it is time to read, also after an error.

        A wait proves nothing; only a read does. `is_over` is called every 0.2 s, and ends the wait. Any number of
        threads may wait; none blocks another call.
        """
        if self._pid != os.getpid():
            self._reset(self.place)
        now, clock = self._now, self._source.clock
        if now is not None and now.compared_s <= self._woken_s:
            timeout_s = min(timeout_s, max(0.0, now.compared_s + COMPARE_S - clock()))
        is_due = self.place.position > position or self._follower.wait(position, timeout_s, is_over)
        if is_due:
            self._woken_s = clock()
        return is_due

    # ---- append

    def append(self, producer: Producer, record: LedgerRecord, *, waits: bool = False) -> Pending[Landed]:
        """Append a record, and wait for nothing. The result is its verdict, once this process has read the record.

        `waits`: the caller takes the result at once, so a Commit may share a record with those of other threads.

        Raises ClosedError, Unavailable if it could not even be queued. The result raises OutcomeUnknown if the record
        may be in the ledger, or still arrive; Damaged if the ledger lost records.
        """
        if self._is_closed:
            raise ClosedError("the log is closed", hint="Close its writers first, and then the log")
        later = add_gathered(self, producer, record) if isinstance(record, Commit) else None
        if later is not None:
            return later
        if isinstance(record, Commit) and waits:
            return self._group.append(self, producer, record)
        value = encode(record)
        sent = self.send(producer, record, value)
        return Pending(type(record).__name__, 0, sent.wait, lambda: self.landed(LastRecord.of(sent.result(), value)))

    def send(self, producer: Producer, record: LedgerRecord, value: bytes) -> Pending[int]:
        """Append an encoded record, and wait for nothing. The result is its offset. Raises as `append`."""
        clock = self._source.clock
        sent = send_record(producer, self._source.topic, type(record).__name__, value, clock)
        self._compare_meanwhile(clock() - COMPARE_S / 2)
        return sent

    def open(self, producer: Producer, make: Callable[[LedgerFold], Open]) -> int | None:
        """Append the Open that `make` makes from the fold, and read it back from the log's own cluster. Return the
        epoch; None if it is void because another record came in between. Raises as the result of `append`.
        """
        landed = self.append(producer, self.ask(make)).result()
        if landed.void is not None:
            return None
        self._source.identify(0.0)
        return landed.offset

    def landed(self, ours: LastRecord, number: int = 0) -> Landed:
        """Read the verdict on a record, or on one of the commits in it. Raises as the result of `append`."""
        self._verdicts_s.append(self._source.clock())
        with self._source.checking_cluster():
            self._read_to(ours.offset + 1, self._lately_s())
            with self._settled() as now:
                found, void = now.fold.hash_at(ours.offset), now.voids.get((ours.offset, number))
            if not found:
                what = "the ledger was truncated past a record before its verdict was read"
                hint = "Open the writer again: that resolves it"
                raise OutcomeUnknown(what, hint=hint, topic=self._source.topic, offset=ours.offset)
            if found != ours.hash:
                what = "another record is at the offset where ours was acknowledged"
                raise self._source.lost(what, ours.offset, self.place.position)
            return Landed(ours.offset, void)

    # ---- one thread reads for all that wait

    @contextmanager
    def _settled(self) -> Generator[Following]:
        """Yield the fold, which does not change inside the block."""
        while True:
            self._read_to(0, -math.inf)
            with self._lock:
                now = self._now
                if now is not None and not now.is_torn:
                    yield now
                    return

    def _read_to(self, position: int, since_s: float) -> None:
        if self._pid != os.getpid():
            self._reset(self.place)  # A fork copies locked locks, and a client without its threads.
        clock = self._source.clock
        read, progress_s = -1, clock()

        def read_on() -> None:
            nonlocal read, progress_s
            self._step(position, since_s)
            if (at := self.place.position) != read:
                read, progress_s = at, clock()
            elif clock() - progress_s >= STALL_TIMEOUT_S:
                self._end(position)
                what = f"no ledger record came within {STALL_TIMEOUT_S:g} s"
                raise BrokerUnavailable(what, topic=self._source.topic, position=read, end=position)

        self._turns.until(lambda: self._has(position, since_s), read_on)

    def _compare_meanwhile(self, since_s: float) -> None:
        """Compare the folded records while the brokers handle a new one, unless another thread reads."""
        if self._now is not None:
            with suppress(StatelogError):  # The verdict raises it again.
                self._turns.until(lambda: self._has(0, since_s), lambda: self._step(0, since_s), waits=False)

    def _has(self, position: int, since_s: float) -> bool:
        """Return whether the position was read, and compared since then. The caller holds the lock."""
        now = self._now
        if now is None or now.is_torn or self._known is not ORIGIN:
            return False
        if now.position < position or now.compared_s < since_s:
            return False
        self._source.check_proof(now.fold)
        return True

    # ---- the thread that reads

    def _step(self, position: int, since_s: float) -> None:
        """Read some records, or all."""
        try:
            self._read_more(position, since_s)
        except BaseException as error:
            if self._now is not None and not isinstance(error, Unavailable):
                self._now.is_torn = True
            raise

    def _read_more(self, position: int, since_s: float) -> None:
        now = self._now
        if now is None or now.is_torn:
            newest = self._source.snapshots.newest_sound(max_age_s=0.0 if now else COMPARE_S)
            if newest is None:
                try:
                    self._source.require_whole()
                except OffsetGone:  # The log's first round may have ended between the two calls.
                    newest = self._source.snapshots.newest_sound()
                    if newest is None:
                        raise
            now = self._begin(newest)
        if not self._is_followed():
            self._follower.rest_if_idle()
        elif since_s <= now.compared_s and now.position < position:
            self._poll(now)
            return
        known = self._known.position
        if self._read_on(now, max(position, now.position) if known <= position else self._end()):
            self._agree(now)

    def _begin(self, base: Manifest | None) -> Following:
        """Begin a new fold, which has to agree with the present one's place."""
        self._follower.rest()
        now = Following.of(self._source.identity, base)
        with self._lock:
            self._known, self._now = self.place, now
            self._window = Window(now.position)
        return now

    def _agree(self, now: Following) -> None:
        """Compare the place of an earlier fold, unless a Restart has since resolved its loss."""
        if self._known is ORIGIN:
            return
        last = self._known.last
        if last is not None and last.offset > now.fold.restarted:
            if self._is_lost:
                raise mismatch(self._source.topic, last, position=now.position)
            self._source.check_place(now.fold, self._known)
        self._known, self._is_lost = ORIGIN, False

    def _read_on(self, now: Following, end: int) -> bool:
        """Read from the last compared record to `end`: compare the folded records, and fold the new ones. Return False
        if the read has to begin again.
        """
        source, asked_s, start = self._source, self.now_s(), now.compared
        source.identify(IDENTIFY_S)
        try:
            if start < end:
                with closing(source.kafka.reader(source.topic)) as reader:
                    records = reader.read({0: OffsetRange(start, end)}, stall_timeout_s=STALL_TIMEOUT_S)
                    new = self._compared(now, records, now.expected())
                    while portion := list(islice(new, _PORTION)):
                        self._take(now, portion)
        except OffsetGone as error:
            self._go_on_elsewhere(now, error)
            return False
        if self._now is not now or (now.is_at_base and start < now.compared):
            return False  # The compared records are forfeited.
        with self._lock:
            if end > now.position:
                now.fold.advance(end)
            now.compared = now.last.offset if now.last else now.position
            now.compared_s = asked_s
        return True

    def _compared(self, now: Following, records: Iterable[Record], expected: dict[int, int]) -> Generator[Record]:
        """Compare the folded records, and then yield the new ones."""
        position = now.position
        for found in records:
            if found.offset >= position:
                if self._is_forfeited(now, expected):
                    return
                yield found
                yield from records
                return
            if expected.get(found.offset) == LastRecord.of(found.offset, found.value).hash:
                del expected[found.offset]
        self._is_forfeited(now, expected)

    def _is_forfeited(self, now: Following, expected: dict[int, int]) -> bool:
        """Return whether the missing records are forfeited, so that the read begins again; False if none is missing.
        Raises AnchorMismatch if they are lost.
        """
        if not expected:
            return False
        last = LastRecord(max(expected), expected[max(expected)])
        if not self._source.is_forfeited(last.offset):
            self._is_lost = True
            raise mismatch(self._source.topic, last, position=now.position)
        if now.is_at_base:  # The base counts.
            now.compared = now.position
        else:
            self._begin(self._source.snapshots.newest_sound())
            self._known = ORIGIN
        return True

    def _take(self, now: Following, records: Iterable[Record]) -> None:
        with self._lock, collector_paused():
            for found in records:
                self.rate.add(len(found.value))
                for commit in now.take(found):
                    self._window.add(commit)

    # ---- a client that follows, while verdicts are asked for, or a thread waits

    def _is_followed(self) -> bool:
        """Return whether verdicts are asked for repeatedly, or a thread waits."""
        is_asked = len(self._verdicts_s) > 1 and self._source.clock() - self._verdicts_s[0] < _IDLE_S
        return is_asked or self._follower.is_used

    def _poll(self, now: Following) -> None:
        """Fold the follower's records, or wait briefly for some."""
        try:
            records, position = self._follower.take(now.position, _POLL_S)
        except OffsetGone as error:  # The follower may have been behind the fold.
            if self._source.range().start > now.position:
                self._go_on_elsewhere(now, error)
            return
        try:
            self._take(now, records)
        except OffsetGone as error:
            self._go_on_elsewhere(now, error)
            return
        with self._lock:
            now.fold.advance(max(now.position, position))

    # ---- behind a truncation, or a Restart

    def _go_on_elsewhere(self, now: Following, error: OffsetGone) -> None:
        """Continue from a snapshot, or from the ledger's new start: it begins above the start of the read, or continues
        from a snapshot above the fold's start. Raises the error if neither covers the gap.
        """
        source, position = self._source, now.position
        start = source.range().start
        if start <= now.compared and not now.is_torn:
            raise BrokerUnavailable("a read was refused, and the offset is there", topic=source.topic, offset=start)
        is_left = start < position or (start == position and now.is_at_base)
        if is_left and not now.is_torn:
            now.compared = start
            return
        newest = source.snapshots.newest_sound()
        least = now.fold.start + 1 if now.is_torn else position + now.is_at_base
        if newest is not None and newest.position >= least:
            self._begin(newest)
        elif start == position and not now.is_torn:
            now.compared = start
        else:
            raise error

    # ---- places

    def _compare_place(self, place: Place) -> None:
        with self._settled() as now:
            last = place.last
            if last is None or now.fold.hash_at(last.offset) == last.hash:
                return
        self._source.check_place(now.fold, place)

    def close(self) -> None:
        """Release the client, unless other logs share it."""
        if self._users:
            self._users.pop()
        if self._users:
            return
        self._is_closed = True
        if self._pid == os.getpid():
            self._follower.close()


_SHARED: "WeakValueDictionary[tuple[int, LogIdentity], History]" = WeakValueDictionary()


def _view(now: Following) -> LedgerView:
    return LedgerView(now.fold.freeze(), now.place, now.base if isinstance(now.base, Manifest) else None)
