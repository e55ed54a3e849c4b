"""`Reach`: what a log holds of its history now, and where a range of changes begins and ends in it.

Changes can be read from a position on if the fold of the ledger can begin at or below it (at a snapshot, or at the
ledger's first record) and the data topic still has what was committed behind it. Never reads a run or a chunk.
"""

import math
from collections.abc import Collection, Iterable
from contextlib import closing

from statelog.errors import Misuse, NotFound
from statelog.reading.at import AtCheckpoint, AtPosition, AtTime, Bound
from statelog.reading.commits import Folded
from statelog.reading.plan import partitions_of
from statelog.reading.planner import Planner
from statelog.schemas.ledger.place import Place
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.kafka import OffsetRange, Reader, Record
from statelog.storage.ledger_client import STALL_TIMEOUT_S, LedgerBase
from statelog.storage.log.log import Log

__all__ = ["Reach"]

_HINT = (
    "Ask for changes from the oldest to the newest position (earliest: all that is held); what lies below is in the"
    " state only"
)
_CLOCKS_APART_S = 600
"""By how much the materializer's clock and the store's are believed to be behind the brokers' at most, both of them."""


class Reach:
    """One look at a log. Manifests are listed first, then the ledger's ends are asked.

    `base` is a fold that the caller has kept, for a start that no snapshot is left for. Raises as planning does.
    """

    def __init__(
        self,
        log: Log,
        key_groups: frozenset[int] | None,
        base: LedgerBase | None = None,
        *,
        seen: Collection[Place] = (),
    ) -> None:
        self._log = log
        self._planner = Planner(log, None, key_groups, seen=seen)
        self._partitions = partitions_of(self._planner.key_groups, log.descriptor)
        self._base = base
        self.manifests: Iterable[Manifest] = self._planner.manifests()
        self.end_position = self._planner.ledger_end(self.manifests)
        self._ledger_start = log.kafka.offsets(log.ledger_topic, [0])[0].start

    @property
    def seen(self) -> list[Place]:
        """What the ledger is compared with."""
        return self._planner.seen(self.manifests)

    @property
    def oldest_position(self) -> int:
        """The lowest position from which changes can be read."""
        if self._reaches_back(Folded()):
            return 0
        positions = [base.state.position for base in self._bases() if self._reaches_back(base)]
        return min(positions, default=self.end_position)

    def base_for(self, start_position: int) -> LedgerBase | None:
        """The nearest fold at or below a position; None for the ledger's first record. Raises NotFound if none is left.

        Whether the data topic has all that follows is for the plan to tell.
        """
        below = [base for base in self._bases() if base.state.position <= start_position]
        if below:
            return max(below, key=lambda base: base.state.position)
        if self._holds_mark:
            return None
        raise self.not_held(f"changes from position {start_position} on")

    def resolve(self, bound: Bound) -> int:
        """The position that a bound names. Raises NotFound if the log does not hold it, Misuse if it has no times."""
        match bound:
            case AtPosition(position):
                found: int | None = position if position <= self.end_position else None
            case AtCheckpoint():
                found = self._planner.find(bound, self.manifests, self.end_position)
            case AtTime(timestamp_ms):
                found = self._first_since(timestamp_ms)
                if found == self._ledger_start and not self._holds_mark and not self._all_older(timestamp_ms):
                    found = None  # What was truncated may be of that time, too: it is not skipped.
        if found is None:
            raise self.not_held(str(bound))
        return found

    def not_held(self, what: str) -> NotFound:
        """That the log does not hold something, and what it holds."""
        return NotFound(
            f"the log {self._log.name} does not hold {what}",
            log=self._log.name,
            oldest_position=self.oldest_position,
            newest_position=self.end_position,
            hint=_HINT,
        )

    # ---- where a fold may begin

    @property
    def _holds_mark(self) -> bool:
        return self._ledger_start == 0 and self._log.descriptor.made_with is None

    def _bases(self) -> list[LedgerBase]:
        """Those whose position the ledger still follows on, in no order."""
        kept = [] if self._base is None else [self._base]
        return [base for base in (*kept, *self.manifests) if base.state.position >= self._ledger_start]

    def _reaches_back(self, base: LedgerBase) -> bool:
        """Whether all that was committed behind a base is there."""
        if base.state.position == 0 and not self._holds_mark:
            return False
        committed, held = base.state.committed_positions, self._log.data_offsets()
        return all(held[partition].start <= committed.get(partition, 0) for partition in self._partitions)

    # ---- times

    def _first_since(self, timestamp_ms: int) -> int:
        """The offset of the ledger's first record of this time or later, by halving; the end if there is none.

        Brokers stamp records as they append them, so times go up, but for a new leader whose clock is behind.
        """
        low, high = self._ledger_start, self.end_position
        with closing(self._log.kafka.reader(self._log.ledger_topic)) as reader:
            while low < high:
                middle = (low + high) // 2
                found = _first_record(reader, middle, high)
                if found is None or self._time_of(found) >= timestamp_ms:
                    high = middle
                else:
                    low = found.offset + 1
        return low

    def _all_older(self, timestamp_ms: int) -> bool:
        """Whether all that lay below the ledger's start is older: a snapshot of it was there before that time."""
        since_s = timestamp_ms / 1000 - _CLOCKS_APART_S
        put_s = {number: info.modified_s for number, info in self._log.manifests.listed().items()}
        return any(
            one.position >= self._ledger_start and max(one.created_s, put_s.get(one.number, math.inf)) <= since_s
            for one in self.manifests
        )

    def _time_of(self, record: Record) -> int:
        if record.timestamp_ms < 0:
            raise Misuse(
                "the ledger's records have no times of the broker's",
                topic=self._log.ledger_topic,
                hint="Ask by position or checkpoint; the topic's message.timestamp.type is not LogAppendTime",
            )
        return record.timestamp_ms


def _first_record(reader: Reader, start: int, end: int) -> Record | None:
    return next(reader.read({0: OffsetRange(start, end)}, stall_timeout_s=STALL_TIMEOUT_S), None)
