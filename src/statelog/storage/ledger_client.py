"""The ledger client: folds the ledger, and appends records and settles their outcome. Belongs to one thread.

Invariants:
- The fold is fed every ledger record from its base on, in order, without a gap that the broker did not make.
- An append is never sent twice. Its outcome is an offset, a clear failure, or OutcomeUnknown, after which
  this producer must not be used again (its record may still land).
- A valid commit that was folded is returned by one `read_to`, even if that of its turn failed half way.
- Every read starts at the last record that was read, and all that was folded since must still be the same, so a ledger
  that lost its tail and grew again, or was recreated, is noticed. A record that is gone by truncation proves nothing.
- No verdict, and nothing that is read, rests on a look at last record and identity that is older than `LOOK_AGAIN_S`.
- What is missing is reported as a loss only after the identity was checked: it may be another cluster, or a new log.
"""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain
from typing import NamedTuple

from statelog.closing import Closing
from statelog.errors import (
    BeyondEnd,
    ClosedError,
    DataLoss,
    NotFound,
    OffsetGone,
    OutcomeUnknown,
    StatelogError,
    Unavailable,
)
from statelog.pending import Pending
from statelog.schemas.ledger.fold import Folded, LedgerBase, LedgerFold, ValidCommit, Void
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, Restart, decode, encode
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.kafka import STALL_TIMEOUT_S, Kafka, OffsetRange, Producer, Record
from statelog.storage.ledger_compare import is_restarted, mismatch, near_ones, parted
from statelog.storage.ledger_tape import LedgerTape, Look, Taped, send_record

LOOK_AGAIN_S = 1.0
_PORTION_BYTES = 8 << 20
_SHARED = 256
"""So many of the records that were read are put down for others: who is far behind reads for itself."""


def _nothing_to_verify(*, anew: bool = False) -> None:
    """Who only reads has no verdict that identity could spoil."""


class _Applied(NamedTuple):
    """A record that was just folded, the fold's verdict, and whose it is, if it is a valid commit."""

    taped: Taped
    void: Void | None
    writer: str


class LedgerClient(Closing):
    """Follows one log's ledger from a base, or from its first record.

    `verify` compares the log's identity with the cluster's, unless that was done just now, or always if `anew`. It is
    asked before a verdict, and before what was read is believed. `rebase` gives the newest snapshot, `snapshot_at` that
    of a position, which says what a truncated ledger had below it, `newest` the newest to compare. With `keeps` the
    valid commits that are folded are kept until `kept` is asked for. What is read is compared with the `tape` of this
    process, whose clock is the same; who `shares` does not read again for a verdict what others put down there.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        identity: LogIdentity,
        base: LedgerBase | None = None,
        *,
        rebase: Callable[[], LedgerBase | None] | None = None,
        snapshot_at: Callable[[int], LedgerBase | None] = lambda _: None,
        newest: Callable[[], LedgerBase | None] = lambda: None,
        verify: Callable[..., object] = _nothing_to_verify,
        clock: Callable[[], float] = time.monotonic,
        keeps: bool = False,
        tape: LedgerTape | None = None,
        shares: bool = False,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._identity = identity
        self._last: LastRecord | Record | None = base.place.last if base else None
        self._unread: list[LastRecord] = []
        self._rebase = rebase
        self._snapshot_at = snapshot_at
        self._verify = verify
        self._clock = clock
        self._there_s = -math.inf  # All that was folded was in the ledger at some time behind it.
        self._reader = kafka.reader(topic)
        self._valid: list[ValidCommit] = []
        self._newest: _Applied | None = None
        self._taken_bytes = 0
        self._keeps = keeps
        self._tape = tape or LedgerTape()
        self._shares = shares
        self._compared: set[LastRecord] = set()
        self._compared_s = -math.inf
        self._sent_s = -math.inf
        self._is_torn = False
        self._is_unproved = False  # Whether nothing is left to compare with what was folded before.
        self._newest_snapshot = newest
        self._snapshot_position = base.position if isinstance(base, Manifest) else None
        self.fold = LedgerFold(identity, base.state, base.place.last) if base else LedgerFold(identity)

    @property
    def last(self) -> LastRecord | None:
        """The record that was folded last, if it is known: a later reader compares what is there with it."""
        return LastRecord.of(*self._last[1:3]) if isinstance(self._last, Record) else self._last

    @property
    def place(self) -> Place:
        """How far was folded."""
        return Place(self.fold.position, self.last)

    @property
    def position(self) -> int:
        """The ledger position up to which was folded."""
        return self.fold.position

    @property
    def compared_position(self) -> int:
        """Below it nothing that was folded waits for the next read to be compared."""
        return self._unread[0].offset if self._unread else self.position

    @property
    def folded(self) -> Folded:
        """The ledger up to there: a copy, where another fold can begin."""
        return Folded(self.fold.freeze(), self.place)

    def end_position(self) -> int:
        """The ledger's end now: a target to take once. Raises BrokerUnavailable."""
        return self._kafka.offsets(self._topic, [0])[0].end

    def read_to(self, end_position: int, *, most_bytes: int = sys.maxsize) -> list[ValidCommit]:
        """Fold all records below `end_position`; returns the valid commits among those that were new.

        Ends before that, at a later position than before, once the commits to return have `most_bytes` together.
        If the ledger was truncated past the fold while its owner was idle, the fold starts over from what `rebase`
        gives, and the commits below that are not returned. Raises OffsetGone if it starts above the fold's position all
        the same, BeyondEnd if it ends below `end_position`, IdentityChanged, CorruptLedger, UnknownFormat,
        BrokerUnavailable.
        """
        with self._asking_who_answers():
            self._follow(end_position, takes=True, most_bytes=most_bytes)
        valid, self._valid = self._valid, []
        return valid

    def portions(self, end_position: int) -> Iterator[list[ValidCommit]]:
        """As `read_to`, some commits at a time: whoever looks at one after the other has few in memory."""
        while self.position < end_position:
            yield self.read_to(end_position, most_bytes=_PORTION_BYTES)

    def read_end(self) -> list[ValidCommit]:
        """As `read_to` the ledger's end now. Raises BeyondEnd, too, if that lies below the fold's position."""
        return self.read_to(self._checked_end())

    def fold_to(self, end_position: int) -> None:
        """As `read_to`, if only the fold is needed: a long ledger's commits are not kept in memory."""
        with self._asking_who_answers():
            self._pass(end_position)

    def fold_end(self, end_position: int | None = None) -> None:
        """As `read_end`, if only the fold is needed. `end_position` is the ledger's end, if it was just asked for."""
        self.fold_to(self._checked_end(end_position))

    def kept(self) -> list[ValidCommit] | None:
        """The valid commits since the base, kept no longer. None if none was kept, or the base is newer now."""
        kept, self._valid, keeps, self._keeps = self._valid, [], self._keeps, False
        return kept if keeps else None

    def send(self, producer: Producer, record: LedgerRecord) -> Pending[int]:
        """Append, and wait for nothing: as `send_record`, for the others who follow, too. Raises Unavailable."""
        self._sent_s = self._clock()
        return send_record(producer, self._topic, record, self._clock, self._tape, self.position)

    def verdict(self, offset: int, record: LedgerRecord, *, verify: Callable[[], object] | None = None) -> Void | None:
        """Why the record that we appended at `offset` is void, or None if it is valid.

        If nothing can lie between what is folded and our record, or only what this process appended, this needs no
        read, unless the last one is too old. `verify` is asked before it is found valid. Raises BeyondEnd or
        AnchorMismatch if the ledger lost acknowledged records, IdentityChanged if it is another, OutcomeUnknown if it
        was truncated past ours. A commit whose verdict is not believed yet comes out of the next `read_to`.
        """
        self._newest = None
        try:
            with self._asking_who_answers():
                landed = self._landed(offset, record)
                if verify is not None and landed.void is None:
                    verify()
        except BaseException:
            self._take_newest()
            raise
        return landed.void

    def _landed(self, offset: int, record: LedgerRecord) -> _Applied:
        """Our record, folded where it was acknowledged."""
        if offset < self.fold.position:
            raise self._lost("a record was appended below what was folded already", offset)
        if offset == self.fold.position and not self._is_torn and not self._is_over_due(self._there_s):
            ours = known = self._tape.at(offset)
            if ours is None or ours.record is not record:
                ours = Taped(Record(0, offset, encode(record), -1), record, self._sent_s)
            if known and known.found.value != ours.found.value:
                raise self._lost("another record was acknowledged, or read, where ours is", offset)
            self._believe([ours])
        else:
            self._pass(offset + 1)
        if self._newest is None:
            what = "the ledger was truncated past a record before its verdict was read"
            hint = "Open the writer again: that settles it"
            raise OutcomeUnknown(what, hint=hint, topic=self._topic, offset=offset)
        if self._newest.taped.found.offset != offset or self._newest.taped.record != record:
            raise self._lost("another record stands where ours was acknowledged", offset)
        return self._newest

    @contextmanager
    def _asking_who_answers(self) -> Generator[None]:
        """Before what was read is believed; and anew before anything is reported missing."""
        try:
            yield
        except (NotFound, DataLoss):
            with suppress(Unavailable):
                self._verify(anew=True)
            raise
        self._verify()

    def _is_over_due(self, looked_s: float) -> bool:
        return self._clock() - looked_s >= LOOK_AGAIN_S

    def _pass(self, end_position: int) -> None:
        """Fold by what others know, as far as they know it."""
        tape, last = self._tape, self.last
        if not self._shares or last is None or self._keeps or self._is_torn or tape.at(last.offset) is None:
            self._follow(end_position)
            return
        tape.await_answers(last.offset, end_position)
        new = self._shared(tape, last, end_position, LOOK_AGAIN_S if tape.is_read else LOOK_AGAIN_S / 2)
        if new is None:
            with tape.reading():
                new = self._shared(tape, last, end_position, LOOK_AGAIN_S / 2)
                if new is None:
                    self._follow(end_position)
                    return
        self._believe(new)

    def _shared(self, tape: LedgerTape, last: LastRecord, end_position: int, max_age_s: float) -> list[Taped] | None:
        """What others know of what is to fold, if it was there lately, as all that was folded: we have read since, or
        one of them has looked for us.
        """
        unread, since_s = self._unread or [last], self._clock() - max_age_s
        run = tape.run(last, end_position, unread, there_s=self._there_s, since_s=since_s)
        if run is None:
            return None
        if run.look is not None:
            compared, self._there_s = min(run.look.end - 1, last.offset), run.look.asked_s
            self._unread = [one for one in self._unread if one.offset >= compared]  # Nobody has compared the rest.
        return run.new

    def _believe(self, new: list[Taped]) -> None:
        """Fold what nobody has read for us: the next read compares it."""
        self._unread = self._unread or [one for one in (self.last,) if one is not None]
        self._fold(new)
        self._unread += [one.last for one in new]
        self._there_s = min((self._there_s, *(one.there_s for one in new)))

    def _follow(self, end_position: int, *, takes: bool = False, most_bytes: int = sys.maxsize) -> None:
        """Read and fold what is below `end_position`, if need be from a newer base."""
        while True:
            try:
                self._read_on(end_position, takes or self._keeps, most_bytes)
            except OffsetGone:
                newer = self._rebase() if self._rebase else None
                if newer is None or newer.place.position <= self.fold.position:
                    raise
                self._last = newer.place.last
                self.fold = LedgerFold(self._identity, newer.state, self._last)
                self._newest, self._unread = None, []
                self._keeps = self._is_torn = self._is_unproved = False
            else:
                return

    def _read_on(self, end_position: int, takes: bool, most_bytes: int) -> None:
        if self._is_torn:
            raise ClosedError("a record of the ledger was folded half", hint="Make a new ledger client")
        is_news = end_position > self.fold.position
        if not is_news and (end_position < self.fold.position or not self._is_over_due(self._there_s)):
            return
        with self._tape.looking(max(self.position, end_position - _SHARED)) if self._shares else nullcontext() as own:
            self._there_s, asked_s, start = -math.inf, self._clock(), self.fold.position
            compared, shared = list[LastRecord](), list[Taped]()
            self._fold(self._read(end_position, asked_s, own, compared, shared), takes=takes, most_bytes=most_bytes)
            if self._taken_bytes >= most_bytes:
                return
            self._there_s, self._is_unproved = asked_s, False
            first = min(start, compared[0].offset) if compared else start
            self._tape.looked(Look(asked_s, first, end_position), compared, shared, counts=self._shares)
            if self._is_over_due(self._compared_s):
                self._compared, self._compared_s = set(), asked_s
            self._compared.update(compared, (one.last for one in shared))
            self.fold.advance(end_position)

    def _read(
        self, end_position: int, asked_s: float, own: object, compared: list[LastRecord], shared: list[Taped]
    ) -> Iterator[Taped]:
        """What is new, behind what was `compared`; so is what others know, or may soon. We share what is `shared`."""
        near = end_position - _SHARED if self._shares else end_position
        for found in self._new_records(end_position, compared):
            taped = Taped(found, decode(found.value), asked_s)
            if found.offset >= near:
                shared.append(taped)
            elif self._tape.may_know(found.offset, own):
                compared.append(taped.last)
            yield taped

    def _fold(self, new: Iterable[Taped], *, takes: bool = False, most_bytes: int = sys.maxsize) -> None:
        """Fold one record after the other, until the commits that it takes have `most_bytes` together."""
        self._taken_bytes = 0
        for taped in new:
            found, record = taped.found, taped.record
            # An exception from here to the next record, Ctrl-C included, would drop a commit that is folded already.
            if self._is_unproved and isinstance(record, Restart):
                raise self._given_up(found.offset)
            self._is_torn = True
            # A commit names its epoch only, and ends its writer's row if it is final: so whose it is is asked before.
            live = self.fold.live_epoch(record.epoch) if isinstance(record, Commit) else None
            void = self.fold.apply(found.offset, record, taped.last.hash)
            self._last = found
            self._newest = _Applied(taped, void, live.writer if live else "")
            if takes:
                self._take_newest()
            self._is_torn = False
            if self.fold.loss is None and self._taken_bytes >= most_bytes:
                break
        if (loss := self.fold.loss) is not None:
            if loss.other is not None:
                raise mismatch(self._topic, loss.other, position=self.position)
            raise self._lost(loss.what, loss.offset)
        self._last = self.last  # Which is asked for by every chunk.

    def _take_newest(self) -> None:
        """Keep the record that was folded last for `read_to` to return, once, if it is a valid commit."""
        newest = self._newest
        if newest is None or newest.void is not None or not isinstance(newest.taped.record, Commit):
            return
        found, commit = newest.taped.found, newest.taped.record
        place = Place(found.offset + 1, newest.taped.last)
        if not self._valid or self._valid[-1].place != place:
            self._valid.append(ValidCommit(newest.writer, commit, found.timestamp_ms, place))
            self._taken_bytes += len(commit.body)

    def check(self, places: Iterable[Place]) -> None:
        """Compare what was remembered of this ledger with the records that are there. Those that are gone by truncation
        prove nothing, unless a look had missed them before, or a snapshot of their place is kept; nor does a place
        without a record: for that, its position has to be compared with the end.

        Raises AnchorMismatch, BeyondEnd, BrokerUnavailable.
        """
        with self._asking_who_answers():
            recent = () if self._is_over_due(self._compared_s) else self._compared
            known = {self.last, *self._unread, *recent} - self._tape.lost  # The next read compares what is unread.
            unknown = {one for one in places if one.last is not None and one.last not in known}
            since_s = self._clock() - LOOK_AGAIN_S if self._shares else math.inf
            unknown -= {one for one in unknown if one.last and self._tape.knows(one.last, since_s)}
            for pile in near_ones(unknown, _SHARED):
                self._compare(pile)

    def _compare(self, pile: list[Place]) -> None:
        try:
            with closing(self._records(pile[0].last_offset, pile[-1].last_offset + 1)) as records:
                there, _ = parted(records, sys.maxsize)
        except OffsetGone:
            start = self._kafka.offsets(self._topic, [0])[0].start
            if start <= pile[0].last_offset:
                raise  # The answer is older than the refusal.
            self._check_truncated(pile, start)
            if left := [one for one in pile if one.last_offset >= start]:
                self._compare(left)
            return
        if missing := [one.last for one in pile if one.last is not None and one.last not in there]:
            self._require_accepted(max(missing))  # All others lie below.

    def _check_truncated(self, places: Iterable[Place], start: int) -> None:
        """Those of these places where the ledger has begun above: what a look had missed before was no truncation's,
        and a place right where it begins is compared with the snapshot of its position, if there is one.
        """
        for position, last in places:
            if last is None or last.offset >= start:
                continue
            if last in self._tape.lost:
                raise mismatch(self._topic, last, position=self.position)
            snapshot = self._snapshot_at(position) if start <= position else None
            if snapshot is not None and snapshot.place.last not in (None, last):
                self._require_accepted(last)

    def _check_restarts(self) -> None:
        """Nothing is left to compare with: a Restart that was not folded may have given up what was. Raises OffsetGone
        if the newest snapshot knows of one, StoreUnavailable.
        """
        self._is_unproved, newest = True, None
        try:
            newest = self._newest_snapshot()
        except Unavailable:
            raise  # It is asked again.
        except StatelogError:
            pass  # What cannot be read proves nothing.
        if newest is None or newest.state.position < self.position:
            return
        if newest.state.restarted != self.fold.restarted:
            raise self._given_up(newest.state.restarted)

    def _given_up(self, restarted: int) -> OffsetGone:
        what = "a loss was accepted, and nothing is left that shows whether what was folded before is part of it"
        hint = "Start from the newest snapshot"
        return OffsetGone(what, hint=hint, topic=self._topic, offset=restarted, position=self.fold.position)

    def _require_accepted(self, last: LastRecord) -> None:
        """Raise AnchorMismatch unless a person accepted that the ledger lost this record."""
        if not is_restarted(self._reader, self.end_position(), last.offset):
            raise mismatch(self._topic, last, position=self.position)

    def _new_records(self, end_position: int, compared: list[LastRecord]) -> Generator[Record]:
        """The records from the fold's position on, read from the last one that was read, if all since are the same:
        those are then `compared`.
        """
        last, position = self.last, self.fold.position
        expected = self._unread or ([] if last is None else [last])
        while expected:
            with closing(self._records(expected[0].offset, end_position)) as records:
                try:
                    there, new = parted(records, position)
                except OffsetGone:
                    expected = self._left_of(expected)
                    self._last = self.last if expected else None
                    continue
                missing = [one for one in expected if one not in there]
                if not missing:
                    compared += expected
                    self._unread = []
                    yield from chain([] if new is None else [new], records)
                    return
            self._tape.miss(missing)
            self._require_accepted(max(missing))
            expected = []
        self._unread = []
        yield from self._records(self.fold.position, end_position)

    def _left_of(self, expected: list[LastRecord]) -> list[LastRecord]:
        """Those of these records that may still be there, as the first is not. The newest of the others is compared, if
        a snapshot of that place is kept. Raises OffsetGone if none is left, and a newer snapshot goes on from there, or
        knows of a Restart that was not folded.
        """
        position = self.fold.position
        if position == self._snapshot_position and self._rebase is None:
            return []  # Nothing was folded behind the snapshot, which says itself what stood there.
        start = self._kafka.offsets(self._topic, [0])[0].start
        left = [one for one in expected[1:] if one.offset >= start]
        newest = self._rebase() if self._rebase is not None and not left else None
        if newest is not None and newest.place.position > position:
            raise OffsetGone("the ledger was truncated past the fold", topic=self._topic, position=position)
        self._check_truncated((Place(one.offset + 1, one) for one in expected), start)
        if not left and newest is None:
            self._check_restarts()
        return left

    def _records(self, start: int, end_position: int) -> Generator[Record]:
        yield from self._reader.read({0: OffsetRange(start, end_position)}, stall_timeout_s=STALL_TIMEOUT_S)

    def _checked_end(self, end_position: int | None = None) -> int:
        with self._asking_who_answers():
            if end_position is None:
                known = {0: self.fold.position}  # Also by a snapshot, of which the client does not know.
                end_position = self._kafka.offsets(self._topic, [0], at_least=known)[0].end
            if end_position < self.fold.position:
                raise self._lost("the ledger ends below what was folded already", end_position)
        return end_position

    def _lost(self, what: str, offset: int) -> BeyondEnd:
        what = f"acknowledged ledger records are gone: {what}"
        hint = "The brokers lost data: commits that were acknowledged may be gone; check the topic's replicas"
        return BeyondEnd(what, hint=hint, topic=self._topic, offset=offset, position=self.fold.position)

    def close(self) -> None:
        """Release the reader. Idempotent."""
        self._reader.close()
