"""`Replay`: the ledger folded from a base up to past positions, once, for one owner. It retains no commits.

Invariants:
- It begins with the record below its base, which must be the same, unless the ledger was truncated past it.
- Every record from its base on is folded, in order. An interrupted read leaves it where it was, or torn.
"""

from collections.abc import Generator, Iterator
from contextlib import closing

from statelog.closing import Closing
from statelog.errors import ClosedError, OffsetGone
from statelog.history.following import Following
from statelog.history.source import LedgerSource, mismatch
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange, Record
from statelog.schemas.ledger.fold import Folded, LedgerBase, LedgerFold, ValidCommit
from statelog.schemas.ledger.place import LastRecord, Place


class Replay(Closing):
    """A fold from a base on, or from the ledger's first record. Belongs to one thread."""

    def __init__(self, source: LedgerSource, base: LedgerBase | None = None) -> None:
        self._source = source
        self._now = Following.of(source.identity, base)
        self._reader = source.kafka.reader(source.topic)

    @property
    def fold(self) -> LedgerFold:
        """The ledger, folded up to `position`."""
        return self._now.fold

    @property
    def position(self) -> int:
        """The position up to which it has read."""
        return self._now.position

    @property
    def place(self) -> Place:
        """`position` with the record below it."""
        return self._now.place

    @property
    def folded(self) -> Folded:
        """A copy of the fold, from which another one can begin."""
        return Folded(self.fold.freeze(), self.place)

    def commits(self, end: int) -> Iterator[ValidCommit]:
        """Fold up to a position. Yield the valid commits on the way.

        Raises OffsetGone, BeyondEnd, AnchorMismatch, IdentityChanged, CorruptLedger, UnknownFormat, Unavailable.
        """
        with self._source.checking_cluster():
            now = self._now
            if now.is_torn:
                raise ClosedError("a record of the ledger was folded in part", hint="Begin again from the base")
            for found in self._records(end):
                yield from now.take(found)
            self._source.check_proof(now.fold)
            if end > now.position:
                now.fold.advance(end)

    def read_to(self, end: int) -> list[ValidCommit]:
        """Fold up to a position. Return the valid commits on the way. Raises as `commits`."""
        return list(self.commits(end))

    def fold_to(self, end: int) -> None:
        """Fold up to a position. Raises as `commits`."""
        for _ in self.commits(end):
            pass

    def _records(self, end: int) -> Generator[Record]:
        """Yield the new records below a position. Compare the last folded one, unless it was truncated."""
        now, start = self._now, self._now.position
        if end <= start:
            return
        if now.last is not None:
            try:
                yield from self._behind_last(now.last, end)
            except OffsetGone:
                if now.position != start:
                    raise
            else:
                return
        yield from self._reader.read({0: OffsetRange(start, end)}, stall_timeout_s=STALL_TIMEOUT_S)

    def _behind_last(self, last: LastRecord, end: int) -> Generator[Record]:
        position, is_same = self.position, False
        with closing(self._read(last.offset, end)) as records:
            for found in records:
                if found.offset < position:
                    is_same = is_same or LastRecord.of(found.offset, found.value) == last
                    continue
                if not is_same:
                    break
                yield found
        if not is_same and not self._source.is_forfeited(last.offset):
            raise mismatch(self._source.topic, last, position=position)
        if not is_same:
            yield from self._read(position, end)

    def _read(self, start: int, end: int) -> Generator[Record]:
        yield from self._reader.read({0: OffsetRange(start, end)}, stall_timeout_s=STALL_TIMEOUT_S)

    def close(self) -> None:
        """Release the reader. Idempotent."""
        self._reader.close()
