"""The ledger client: reads the ledger into a fold, and appends records whose outcome it settles.

It executes; `schemas.fold` decides. One instance belongs to one thread.

Invariants:
- The fold is fed every ledger record from its base on, in order, without a gap that the broker did not make.
- An append is never sent twice. Its outcome is an offset, a clear failure, or OutcomeUnknown, after which
  this producer must not be used again (its record may still land).
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from statelog.schemas.errors import OffsetGone, OutcomeUnknown, Unavailable
from statelog.schemas.fold import LedgerFold, Void
from statelog.schemas.identity import LogIdentity
from statelog.schemas.ledger import Commit, LedgerRecord, decode, encode
from statelog.schemas.ledger_state import LedgerState
from statelog.storage.kafka import Delivery, DeliveryStatus, Kafka, OffsetRange, Producer

__all__ = ["STALL_TIMEOUT_S", "LedgerClient", "ValidCommit", "append_record"]

STALL_TIMEOUT_S = 30.0
_GRACE_S = 5.0  # beyond the client's own delivery timeout, so that a report is never missed by a hair


class ValidCommit(NamedTuple):
    """A commit that the fold found valid, and its ledger offset."""

    offset: int
    commit: Commit


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
        self._voids: dict[int, Void] = {}
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
        try:
            return self._read_to(end_position)
        except OffsetGone:
            state = self._rebase() if self._rebase else None
            if state is None or state.position <= self.fold.position:
                raise
            self.fold = LedgerFold(self._identity, state)
            return self._read_to(end_position)

    def _read_to(self, end_position: int) -> list[ValidCommit]:
        valid: list[ValidCommit] = []
        if end_position <= self.fold.position:
            return valid
        wanted = {0: OffsetRange(self.fold.position, end_position)}
        for found in self._reader.read(wanted, stall_timeout_s=STALL_TIMEOUT_S):
            record = decode(found.value)
            void = self.fold.apply(found.offset, record)
            if void is not None:
                self._voids[found.offset] = void
            elif isinstance(record, Commit):
                valid.append(ValidCommit(found.offset, record))
        self.fold.advance(end_position)
        return valid

    def read_end(self) -> list[ValidCommit]:
        """Fold up to the ledger's end now."""
        return self.read_to(self.end_position())

    def verdict(self, offset: int, record: LedgerRecord) -> Void | None:
        """Why the record that we appended at `offset` is void, or None if it is valid.

        If nothing can lie between what is folded and our record, this needs no read.
        """
        if offset == self.fold.position:
            return self.fold.apply(offset, record)
        fold = self.fold
        self.read_to(offset + 1)
        if self.fold is not fold and self.fold.position > offset + 1:
            raise OutcomeUnknown(
                "the ledger was truncated past a record before its verdict was read",
                topic=self._topic,
                offset=offset,
                hint="Open the writer again: that settles it",
            )
        return self._voids.pop(offset, None)

    def close(self) -> None:
        """Release the reader. Idempotent."""
        self._reader.close()
