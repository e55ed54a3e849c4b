"""The ledger client: reads the ledger into a fold, and appends records whose outcome it settles.

It executes; `schemas.fold` decides. One instance belongs to one thread.

Invariants:
- The fold is fed every ledger record from its base on, in order, without a gap that the broker did not make.
- An append is never sent twice. Its outcome is an offset, a clear failure, or OutcomeUnknown, after which
  this producer must not be used again (its record may still land).
- A valid commit that was folded is returned by one `read_to`, even if that of its turn failed half way.
"""

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from statelog.schemas.errors import BeyondEnd, ClosedError, OffsetGone, OutcomeUnknown, Unavailable
from statelog.schemas.fold import LedgerFold, Void
from statelog.schemas.identity import LogIdentity
from statelog.schemas.ledger import Commit, LedgerRecord, decode, encode
from statelog.schemas.ledger_state import LedgerState
from statelog.storage.kafka import Delivery, DeliveryStatus, Kafka, OffsetRange, Producer

__all__ = ["STALL_TIMEOUT_S", "LedgerClient", "ValidCommit", "append_record"]

STALL_TIMEOUT_S = 30.0
_GRACE_S = 5.0  # beyond the client's own delivery timeout, so that a report is never missed by a hair


class ValidCommit(NamedTuple):
    """A commit that the fold found valid, its ledger offset, and Kafka's timestamp of it (see `kafka.Record`)."""

    offset: int
    commit: Commit
    timestamp_ms: int = -1


class _Folded(NamedTuple):
    """A record that was just folded, and the fold's verdict."""

    offset: int
    record: LedgerRecord | None
    void: Void | None
    timestamp_ms: int


def append_record(
    producer: Producer, topic: str, record: LedgerRecord, *, clock: Callable[[], float] = time.monotonic
) -> int:
    """Append to the ledger and return the offset.

    Raises Unavailable if the record is certainly not in the ledger and never will be, OutcomeUnknown if it may be.
    """
    reports: list[Delivery] = []
    deadline = clock() + producer.delivery_timeout_s + _GRACE_S
    while not producer.send(topic, 0, encode(record), reports.append):
        producer.poll(0.05)
        if clock() > deadline:
            raise Unavailable("the ledger record could not even be queued", topic=topic)
    while not reports and clock() < deadline:
        producer.poll(0.2)
    if not reports or reports[0].status is DeliveryStatus.UNKNOWN:
        raise OutcomeUnknown(
            f"whether the {type(record).__name__} is in the ledger is not known",
            topic=topic,
            reason=reports[0].reason if reports else "no delivery report",
            hint="Open the writer again: that settles it",
        )
    if reports[0].status is DeliveryStatus.FAILED:
        raise Unavailable(f"the {type(record).__name__} was not written", topic=topic, reason=reports[0].reason)
    return reports[0].offset


class LedgerClient:
    """Follows one log's ledger from a base state."""

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        identity: LogIdentity,
        base: LedgerState | None = None,
        *,
        rebase: Callable[[], LedgerState | None] | None = None,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._identity = identity
        self._rebase = rebase
        self._reader = kafka.reader(topic)
        self._valid: list[ValidCommit] = []
        self._is_torn = False
        self.fold = LedgerFold(identity, base)

    @property
    def topic(self) -> str:
        """The ledger topic."""
        return self._topic

    def end_position(self) -> int:
        """The ledger's end now: a target to take once. Raises BrokerUnavailable."""
        return self._kafka.offsets(self._topic, [0])[0].end

    def read_to(self, end_position: int) -> list[ValidCommit]:
        """Fold all records below `end_position`; returns the valid commits among those that were new.

        If the ledger was truncated past the fold while its owner was idle, the fold starts anew from the newest
        manifest (where the client was given a way to it), and the commits below that are not returned. Raises
        OffsetGone if it starts above the fold's position all the same, BeyondEnd if it ends below `end_position`,
        CorruptLedger, UnknownFormat, BrokerUnavailable.
        """
        for offset, record, void, timestamp_ms in self._follow(end_position):
            if void is None and isinstance(record, Commit):
                self._valid.append(ValidCommit(offset, record, timestamp_ms))
        valid, self._valid = self._valid, []
        return valid

    def read_end(self) -> list[ValidCommit]:
        """Fold up to the ledger's end now. Raises as `read_to`, and BeyondEnd if it ends below the fold's position."""
        return self.read_to(self._checked_end())

    def fold_to(self, end_position: int) -> None:
        """As `read_to`, for who needs the fold only: a long ledger's commits are not kept in memory."""
        for _ in self._follow(end_position):
            pass

    def fold_end(self) -> None:
        """As `read_end`, for who needs the fold only."""
        self.fold_to(self._checked_end())

    def verdict(self, offset: int, record: LedgerRecord) -> Void | None:
        """Why the record that we appended at `offset` is void, or None if it is valid.

        If nothing can lie between what is folded and our record, this needs no read. Raises BeyondEnd if the ledger
        lost acknowledged records, OutcomeUnknown if it was truncated past ours before it could be read.
        """
        if offset == self.fold.position:
            return self.fold.apply(offset, record)
        if offset < self.fold.position:
            raise self._lost("a record was appended below what was folded already", offset)
        landed = deque(self._follow(offset + 1), maxlen=1)
        if landed:
            return self._void_of(landed.pop(), offset, record)
        raise OutcomeUnknown(
            "the ledger was truncated past a record before its verdict was read",
            topic=self._topic,
            offset=offset,
            hint="Open the writer again: that settles it",
        )

    def _void_of(self, landed: _Folded, offset: int, record: LedgerRecord) -> Void | None:
        if landed.offset != offset or landed.record != record:
            raise self._lost("another record stands where ours was acknowledged", offset)
        return landed.void

    def _follow(self, end_position: int) -> Generator[_Folded]:
        """Fold what is below `end_position`, record by record, if need be from a newer base."""
        try:
            yield from self._fold_records(end_position)
        except OffsetGone:
            state = self._rebase() if self._rebase else None
            if state is None or state.position <= self.fold.position:
                raise
            self.fold = LedgerFold(self._identity, state)
            yield from self._fold_records(end_position)

    def _fold_records(self, end_position: int) -> Generator[_Folded]:
        if self._is_torn:
            raise ClosedError("a record of the ledger was folded half", hint="Make a new ledger client")
        if end_position <= self.fold.position:
            return
        wanted = {0: OffsetRange(self.fold.position, end_position)}
        for found in self._reader.read(wanted, stall_timeout_s=STALL_TIMEOUT_S):
            record = decode(found.value)
            # An exception from here to the next record, Ctrl-C included, would drop a commit that is folded already.
            self._is_torn = True
            yield _Folded(found.offset, record, self.fold.apply(found.offset, record), found.timestamp_ms)
            self._is_torn = False
        self.fold.advance(end_position)

    def _checked_end(self) -> int:
        end_position = self.end_position()
        if end_position < self.fold.position:
            raise self._lost("the ledger ends below what was folded already", end_position)
        return end_position

    def _lost(self, what: str, offset: int) -> BeyondEnd:
        return BeyondEnd(
            f"acknowledged ledger records are gone: {what}",
            topic=self._topic,
            offset=offset,
            position=self.fold.position,
            hint="The brokers lost data: commits that were acknowledged may be gone; check the topic's replicas",
        )

    def close(self) -> None:
        """Release the reader. Idempotent."""
        self._reader.close()
