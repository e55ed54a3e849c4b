"""`LedgerSource`: the topic of a log's ledger, checks of it that need several requests, and one append.

Invariants:
- It remembers no answer: each caller knows how old one may be.
- A record is never sent twice: its outcome is an offset, a clear failure, or OutcomeUnknown.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from statelog.errors import AnchorMismatch, BeyondEnd, DataLoss, NotFound, OffsetGone, OutcomeUnknown, Unavailable
from statelog.kafka.port import (
    STALL_TIMEOUT_S,
    Delivery,
    DeliveryStatus,
    Kafka,
    OffsetRange,
    Producer,
    Record,
    report_limit_s,
    with_remedy,
)
from statelog.pending import Pending
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import LedgerRecord, Restart, decode, encode
from statelog.schemas.names import ledger_topic
from statelog.schemas.snapshot.manifest import Manifest

_ASK_AGAIN_S = 0.25
_POLL_S = 0.2


class RetainedSnapshots(Protocol):
    """The retained snapshots of the log."""

    def newest_sound(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """Return the newest one that can be read, or one that was read less than `max_age_s` ago."""
        ...

    def at(self, position: int) -> Manifest | None:
        """Return the one of a position, if it is retained."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSource:
    """A ledger's topic, and the ways to check it.

    identify    raises IdentityChanged, NotFound or Unavailable unless the cluster is the log's, by an answer that is
                less than so many seconds old
    url         the root of the log
    patience_s  how long Kafka is asked again for an end below a known one
    """

    kafka: Kafka
    topic: str
    identity: LogIdentity
    snapshots: RetainedSnapshots
    identify: Callable[[float], object] = lambda _: None
    url: str = ""
    clock: Callable[[], float] = time.monotonic
    patience_s: Callable[[], float] = lambda: 10.0

    def range(self, *, at_least: int = 0) -> OffsetRange:
        """Ask for the ledger's start and end now. For `patience_s` from the first answer on, ask again if the end lies
        below `at_least`: the answer may be stale.
        """
        found = self._offsets()
        deadline_s = time.monotonic() + self.patience_s()
        while found.end < at_least and time.monotonic() < deadline_s:
            time.sleep(_ASK_AGAIN_S)
            found = self._offsets()
        return found

    def end(self, *, at_least: int = 0) -> int:
        """Ask for the ledger's end now, as `range` does."""
        return self.range(at_least=at_least).end

    def require_whole(self) -> None:
        """Raise BeyondEnd or OffsetGone unless the ledger has its first record, as it must without a snapshot."""
        start, end = self._offsets()
        if end == 0 and self.end(at_least=1) == 0:
            what = "the ledger is empty: it lost its mark, and all records behind it"
            raise BeyondEnd(what, topic=self.topic, hint="Restore the topic, or accept the loss by name")
        if start > 0:
            what = "the ledger was truncated, and no manifest says what stood there"
            hint = "Restore the manifests, or check that the root URL is the right one"
            raise OffsetGone(what, topic=self.topic, log_start=start, url=self.url, hint=hint)

    def _offsets(self) -> OffsetRange:
        return self.kafka.offsets(self.topic, [0])[0]

    def record_at(self, offset: int) -> Record | None:
        """Read one record. Return None if the offset has none. Raises OffsetGone, BeyondEnd, Unavailable."""
        return records_at(self.kafka, self.topic, {0: offset}).get(0)

    def is_forfeited(self, offset: int) -> bool:
        """Read whether a person accepted the loss of the record at an offset. Raises Damaged, Unavailable."""
        end = self._offsets().end
        if end <= offset + 1:
            return False
        with closing(self.kafka.reader(self.topic)) as reader:
            records = reader.read({0: OffsetRange(offset + 1, end)}, stall_timeout_s=STALL_TIMEOUT_S)
            restarts = (record for found in records if isinstance(record := decode(found.value), Restart))
            return any(record.position > offset for record in restarts)

    @contextmanager
    def checking_cluster(self) -> Generator[None]:
        """Identify the cluster before an error of the block about missing records is raised. Raise IdentityChanged
        instead if it is another cluster, or the log was re-created.
        """
        try:
            yield
        except (NotFound, DataLoss):
            with suppress(Unavailable):
                self.identify(0.0)
            raise

    def check_proof(self, fold: LedgerFold) -> None:
        """Raise AnchorMismatch or BeyondEnd if a folded record proves a loss."""
        loss = fold.loss
        if loss is None:
            return
        if loss.other is not None:
            raise mismatch(self.topic, loss.other, position=fold.position)
        raise self.lost(loss.what, loss.offset, fold.position)

    def check_place(self, fold: LedgerFold, place: Place) -> None:
        """Compare an observed place with the fold or, below its base, with the ledger's record or the snapshot there.

        Raises AnchorMismatch if another record is there, or none; Damaged, Unavailable.
        """
        position, last = place
        assert last is not None, "a position alone is compared with the end"
        found = fold.hash_at(last.offset)
        if not found and last.offset < fold.hashed_from:
            found = self._hash_below(position, last.offset)
        if found not in (0, last.hash) and not self.is_forfeited(last.offset):
            raise mismatch(self.topic, last, position=fold.position)

    def _hash_below(self, position: int, offset: int) -> int:
        """Read the hash of a record below the base, from the ledger or the snapshot of this position. Return 0 if both
        are missing, -1 if the ledger has no record at the offset.
        """
        try:
            found = self.record_at(offset)
            return LastRecord.of(found.offset, found.value).hash if found else -1
        except OffsetGone:
            at = self.snapshots.at(position)
            return at.place.last.hash if at is not None and at.place.last_offset == offset and at.place.last else 0

    def lost(self, what: str, offset: int, position: int) -> BeyondEnd:
        """Make the error for a ledger that lacks acknowledged records."""
        what = f"acknowledged ledger records are gone: {what}"
        hint = "Check the topic's replicas: the brokers lost data, and acknowledged commits may be lost"
        return BeyondEnd(what, hint=hint, topic=self.topic, offset=offset, position=position)


def mismatch(topic: str, last: LastRecord, *, position: int) -> AnchorMismatch:
    """Make the error for a record that is missing or another one, in a ledger that was folded up to `position`."""
    return AnchorMismatch(
        "a ledger record is not the one that was read there before",
        topic=topic,
        offset=last.offset,
        position=position,
        hint="Restore the topic: the ledger was re-created, restored, or lost its tail and grew again",
    )


def records_at(kafka: Kafka, topic: str, offsets: Mapping[int, int]) -> dict[int, Record]:
    """Read one record of each partition. Leave out partitions without a record at the offset.

    Raises OffsetGone, BeyondEnd, NotFound, Unreadable, BrokerUnavailable.
    """
    wanted = {partition: OffsetRange(offset, offset + 1) for partition, offset in offsets.items()}
    with closing(kafka.reader(topic)) as reader:
        return {found.partition: found for found in reader.read(wanted, stall_timeout_s=STALL_TIMEOUT_S)}


def check_reaches(log: str, end: int, position: int) -> None:
    """Raise BeyondEnd if the ledger of a log ends, at `end`, below an observed position."""
    if end < position:
        what = "the ledger ends below an observed position"
        hint = "Restore the topic, or accept the loss by name: it lost acknowledged commits"
        raise BeyondEnd(what, topic=ledger_topic(log), log_end=end, position=position, hint=hint)


# ---- append


def send_record(producer: Producer, topic: str, kind: str, value: bytes, clock: Callable[[], float]) -> Pending[int]:
    """Append an encoded record of this kind to the ledger, and wait for nothing; the result is the offset.

    Raises Unavailable if it could not even be queued. The result raises OutcomeUnknown if the record may be in the
    ledger, or still arrive: do not use the producer again.
    """
    reports: list[Delivery] = []
    deadline_s = clock() + report_limit_s(producer)
    while not producer.send(topic, 0, value, reports.append):
        producer.poll(0.05)
        if clock() > deadline_s:
            raise Unavailable("the ledger record could not even be queued", topic=topic)

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
                hint=with_remedy(report, "Open the writer again: that resolves it"),
            )
        return report.offset

    return Pending(kind, 0, is_answered, take)


def append_record(producer: Producer, topic: str, record: LedgerRecord) -> int:
    """Append a record to the ledger. Return its offset. Raises Unavailable, OutcomeUnknown."""
    return send_record(producer, topic, type(record).__name__, encode(record), time.monotonic).result()
