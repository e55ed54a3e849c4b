"""Appending to a ledger, and `LedgerTape`: what was appended and read lately, for all who follow through one `Log`.

A record is sent once; its outcome is an offset, or not known. Then the producer must not be used again: the record may
still land, and the next Open settles it.

Who is told that its record was appended puts it down here, and so does who reads; who folds takes it from here. What
nobody here knows one reads, and the others wait for it, each for what it lacks. Each still folds for itself: what is
shared are values, so that whatever becomes of one, the others go on. Thread-safe.

Invariants:
- What was read counts above what was acknowledged at its offset. What is known of the newest look's range is what that
  has found; beside it lies what was acknowledged, which may be of a ledger that lost its tail.
- A run has no gap, and goes on from the record that its taker folded last, which is the same here.
- Of each record it is known how lately it was in the ledger: not before it was sent, or before who read it asked. For
  who folds more than a look has found, the look is as old as the oldest of the rest.
- Nothing is waited for longer than it takes to read: what is under way may never be answered, and a fork may have
  copied a lock that nobody releases.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import NamedTuple

from statelog.errors import OutcomeUnknown, Unavailable
from statelog.pending import Pending
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import LedgerRecord, encode
from statelog.storage.kafka import Delivery, DeliveryStatus, Producer, Record, report_limit_s, with_remedy

_POLL_S = 0.2
_MOST_RECORDS = 4096
_MOST_BYTES = 4 << 20
_ANSWER_S = 0.05
_READ_S = 1.0
_NOBODY = 0


@dataclass(slots=True)
class Taped:
    """A record as it was found, and as it is decoded. It was in the ledger at some time behind `there_s`. Of one that
    was acknowledged the broker's time is not known.
    """

    found: Record
    record: LedgerRecord | None
    there_s: float
    hashed: LastRecord | None = None

    @property
    def last(self) -> LastRecord:
        """What it is compared by: hashed when somebody asks, and once for all."""
        if self.hashed is None:
            self.hashed = LastRecord.of(self.found.offset, self.found.value)
        return self.hashed


class Look(NamedTuple):
    """When a read began, the newest of those that found, one behind the other, what the ledger holds from `start` to
    `end`.
    """

    asked_s: float
    start: int
    end: int


class Run(NamedTuple):
    """Records without a gap; and the look that counts for who goes on with them, unless all is young enough without."""

    new: list[Taped]
    look: Look | None


class _Gap:
    """Who waits for the records from `start` to `end`, of which those whose outcome is `asked` may be some."""

    __slots__ = ("asked", "bell", "end", "start")

    def __init__(self, start: int, end: int, asked: set[object]) -> None:
        self.start = start
        self.end = end
        self.asked = asked
        self.bell = Lock()
        self.bell.acquire()


class LedgerTape:
    """What was read and appended lately, by offset."""

    def __init__(self) -> None:
        self._taped: dict[int, Taped] = {}
        self._size_bytes = 0
        self._under_way: dict[object, int] = {}
        """What was sent and has no answer yet, and the thread that will be told."""
        self._awaited: dict[object, int] = {}
        """From which position on what is under way lies: what was sent, and what somebody reads who puts it down."""
        self._gaps: list[_Gap] = []
        self._lock = Lock()
        self._reading = Lock()
        self.look: Look | None = None
        """The newest look at the ledger itself."""
        self.lost: frozenset[LastRecord] = frozenset()
        """What was known, or folded, where a look found something else, until it is accepted that it is gone."""

    def sending(self, record: LedgerRecord, value: bytes, now_s: float, position: int = 0) -> Callable[[int], None]:
        """A record is about to be sent, to land at this position or behind it: for who is told its offset, or that it
        has none (-1).
        """
        token = object()

        def answer(offset: int) -> None:
            with self._lock:
                is_new = offset >= 0 and offset not in self._taped and not self._was_looked_at(offset)
                if self._under_way.pop(token, None) is not None and is_new:
                    self._put(Taped(Record(0, offset, value, -1), record, now_s))
                self._awaited.pop(token, None)
                self._tell()

        self._awaited[token] = position
        self._under_way[token] = get_ident()
        return answer

    def looked(self, look: Look, compared: Sequence[LastRecord], new: Sequence[Taped], *, counts: bool = True) -> None:
        """Somebody has looked at the ledger: from the look's start on it has what was `compared`, and behind that what
        is `new`. If anything else is known of that range, the ledger lost its tail: that is `lost`, and all that is
        known is forgotten. Others go by this look if it `counts`.
        """
        with self._lock:
            if self.look is None or look.asked_s >= self.look.asked_s:  # Else what it found may be gone since.
                there = {one.offset: one for one in (*compared, *(taped.last for taped in new))}
                fewer, more = sorted((self._taped.keys(), range(look.start, look.end)), key=len)
                known = [self._taped[at].last for at in fewer if at in more]
                if lost := {one for one in known if there.get(one.offset) != one}:
                    self._taped, self._size_bytes, self.look, self.lost = {}, 0, None, self.lost | lost
                if counts:
                    self._note(look, new)
            self._tell()

    def miss(self, gone: Iterable[LastRecord]) -> None:
        """Somebody has folded these, and they are not there any more: whoever comes later compares them, too."""
        with self._lock:
            self.lost = self.lost.union(gone)

    def settle(self, compared: Iterable[LastRecord | None]) -> None:
        """Somebody has compared these, and it was accepted that they are gone."""
        if self.lost:
            with self._lock:
                self.lost = self.lost.difference(compared)

    def _note(self, look: Look, new: Sequence[Taped]) -> None:
        before = self.look
        is_next = before is not None and before.start <= look.start < before.end and look.start in self._taped
        self.look = look._replace(start=before.start) if before is not None and is_next else look
        for one in new:
            self._put(one)

    def at(self, offset: int) -> Taped | None:
        """The record there, if it is known."""
        return self._taped.get(offset)

    def may_know(self, offset: int, own: object) -> bool:
        """Whether the record there is known, or may become so before a look that reads it now, `own`, is put down."""
        awaited = list(self._awaited.items())  # Asked first: what is awaited is put down before it is so no more.
        return any(start <= offset for token, start in awaited if token is not own) or offset in self._taped

    @contextmanager
    def looking(self, start: int) -> Generator[object]:
        """Who looks at the ledger from there on, and puts down what it finds, does so until the block is left."""
        token = object()
        self._awaited[token] = start
        try:
            yield token
        finally:
            self._awaited.pop(token, None)

    def run(
        self, last: LastRecord, end: int, unread: Sequence[LastRecord], *, there_s: float, since_s: float
    ) -> Run | None:
        """All behind the record `last` up to `end`; None if one is missing, or `last` is another one here. All of it
        was in the ledger `since_s`, and so was all that is folded: that was there at `there_s`, or a look says so, for
        which is asked what was folded `unread` since the own one.
        """
        with self._lock:
            new, first = self._between(last.offset + 1, end), self._taped.get(last.offset)
            if new is None or first is None or first.last != last:
                return None
            if min((there_s, *(one.there_s for one in new))) > since_s:
                return Run(new, None)
            look = self._counting(unread, new)
            return Run(new, look) if look is not None and look.asked_s > since_s else None

    def _counting(self, unread: Sequence[LastRecord], new: list[Taped]) -> Look | None:
        """The newest look, if it ties all of this to the ledger, and as old as the oldest of what it did not find: that
        may have been lost before it, if the process stood still.
        """
        look, first = self.look, unread[0].offset
        if look is None or not look.start <= first < look.end:
            return None
        known = [taped for one in unread if (taped := self._taped.get(one.offset)) is not None and taped.last == one]
        if len(known) < len(unread):
            return None
        ages_s = [one.there_s for one in (*known, *new) if one.found.offset >= look.end]
        return look._replace(asked_s=min((look.asked_s, *ages_s)))

    def _was_looked_at(self, offset: int) -> bool:
        """Whether somebody has read past it, and may have found another record, too far back to be put down."""
        return self.look is not None and self.look.start <= offset < self.look.end

    def knows(self, place: LastRecord, since_s: float) -> bool:
        """Whether a look since then has found this record, and none has missed it: that others are noted behind it
        proves nothing.
        """
        with self._lock:
            taped, look = self._taped.get(place.offset), self.look
            if taped is None or taped.last != place or place in self.lost or not self._was_looked_at(place.offset):
                return False
            return look is not None and look.asked_s > since_s

    def await_answers(self, start: int, end: int) -> None:
        """Until what other threads have sent by now is answered, if that may be what is missing from `start` on."""
        with self._lock:
            ours = (get_ident(), _NOBODY)
            asked = {sent for sent, thread in list(self._under_way.items()) if thread not in ours}
            gap = _Gap(start, end, asked)
            is_awaited = self._is_open(gap)
            if is_awaited:
                self._gaps.append(gap)
        if is_awaited and not gap.bell.acquire(timeout=_ANSWER_S):
            with self._lock:  # What is not answered by now is not waited for again.
                self._under_way.update(dict.fromkeys(gap.asked & self._under_way.keys(), _NOBODY))
                self._tell()

    @property
    def is_read(self) -> bool:
        """Whether somebody reads right now."""
        return self._reading.locked()

    @contextmanager
    def reading(self) -> Generator[None]:
        """One reads at a time."""
        is_held = self._reading.acquire(timeout=_READ_S)
        try:
            yield
        finally:
            if is_held:
                self._reading.release()

    def _between(self, start: int, end: int) -> list[Taped] | None:
        taped = self._taped
        found = [one for offset in range(start, min(end, start + len(taped))) if (one := taped.get(offset)) is not None]
        return found if len(found) == end - start else None

    def _tell(self) -> None:
        """Wake those, and only those, who wait for nothing any more."""
        if self._gaps:
            over = [gap for gap in self._gaps if not self._is_open(gap)]
            self._gaps = [gap for gap in self._gaps if gap not in over]
            for gap in over:
                gap.bell.release()

    def _is_open(self, gap: _Gap) -> bool:
        while gap.start < gap.end and gap.start in self._taped:
            gap.start += 1
        return gap.start < gap.end and any(self._under_way.get(sent) for sent in gap.asked)

    def _put(self, taped: Taped) -> None:
        known = self._taped.get(taped.found.offset)
        self._size_bytes += len(taped.found.value) - (len(known.found.value) if known else 0)
        self._taped[taped.found.offset] = taped
        while len(self._taped) > _MOST_RECORDS or self._size_bytes > _MOST_BYTES:
            self._size_bytes -= len(self._taped.pop(next(iter(self._taped))).found.value)


# ---- append


def send_record(
    producer: Producer,
    topic: str,
    record: LedgerRecord,
    clock: Callable[[], float],
    tape: LedgerTape | None = None,
    position: int = 0,
) -> Pending[int]:
    """Append to the ledger, and wait for nothing; the result is the offset, which the `tape` hears, too. The sender has
    folded up to the position. Raises Unavailable if it could not even be queued; the result raises OutcomeUnknown if it
    may be in the ledger, or come.
    """
    kind, value = type(record).__name__, encode(record)
    reports: list[Delivery] = []
    deadline_s = clock() + report_limit_s(producer)
    answer = tape.sending(record, value, clock(), position) if tape is not None else _nobody_asks

    def report(delivery: Delivery) -> None:
        reports.append(delivery)
        answer(delivery.offset)

    is_sent = False
    try:
        while not (is_sent := producer.send(topic, 0, value, report)):
            producer.poll(0.05)
            if clock() > deadline_s:
                raise Unavailable("the ledger record could not even be queued", topic=topic)
    finally:
        if not is_sent:
            answer(-1)

    def is_answered(timeout_s: float) -> bool:
        until_s = min(clock() + timeout_s, deadline_s)
        while not reports:
            producer.poll(min(timeout_s, _POLL_S))
            if clock() >= until_s:
                break
        return bool(reports) or clock() >= deadline_s

    def take() -> int:
        is_answered(math.inf)
        report = reports[0] if reports else Delivery(DeliveryStatus.UNKNOWN, -1, "no delivery report")
        if report.status is DeliveryStatus.UNKNOWN:
            raise OutcomeUnknown(
                f"whether the {kind} is in the ledger is not known",
                topic=topic,
                reason=report.reason,
                hint=with_remedy(report, "Open the writer again: that settles it"),
            )
        return report.offset

    return Pending(kind, 0, is_answered, take)


def _nobody_asks(_offset: int) -> None:
    """Who follows reads it."""


def append_record(producer: Producer, topic: str, record: LedgerRecord) -> int:
    """As `send_record`, and return the offset. Raises Unavailable, OutcomeUnknown."""
    return send_record(producer, topic, record, time.monotonic).result()
