"""A second ledger fold, naive on purpose: it stores the whole history and judges every record from scratch.

It shares no state, no increments and no short cuts with `statelog.schemas.ledger.fold`, so that the two can only agree
if both follow DESIGN section 2.
"""

from typing import NamedTuple

from statelog.errors import OffsetGone
from statelog.schemas.ledger.fold import VoidReason
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import Commit, Commits, Extent, LedgerRecord, Open, Restart

__all__ = ["NOT_LIVE", "NaiveFold", "same_verdict"]

NOT_LIVE = frozenset({VoidReason.FENCED, VoidReason.UNKNOWN_EPOCH})


class _Valid(NamedTuple):
    offset: int
    record: LedgerRecord


def same_verdict(one: VoidReason | None, other: VoidReason | None) -> bool:
    """Return whether two folds agree. Fenced and unknown are one verdict: a fold from a snapshot has only one."""
    return one == other or (one in NOT_LIVE and other in NOT_LIVE)


class NaiveFold:
    """Valid records in order, and queries that read all of them.

    `began` is the position from which its reader folds: a snapshot holds the records below.
    """

    def __init__(self, identity: LogIdentity) -> None:
        self.identity = identity
        self.valid: list[_Valid] = []
        self.began = 0

    def apply(self, offset: int, record: LedgerRecord | None) -> VoidReason | None:
        """Judge the next record. Return None if it is valid, else why it is void.

        Raises OffsetGone for a Restart from a snapshot above the position where its reader began.
        """
        if record is None:
            return None
        if isinstance(record, Commits):
            return [self.apply(offset, commit) for commit in record.commits][-1]
        if isinstance(record, Restart) and record.position > self.began:
            raise OffsetGone("what counts is in a snapshot", position=record.position, began=self.began)
        reason = self.judge(record)
        if reason is None:
            self.valid.append(_Valid(offset, record))
        return reason

    def judge(self, record: LedgerRecord) -> VoidReason | None:
        """Return the verdict on `record` if it came next."""
        match record:
            case Open():
                return self._judge_open(record)
            case Commit():
                return self._judge_commit(record)
            case _:
                return None

    def opens(self) -> list[tuple[int, Open]]:
        """Return every valid Open with its offset."""
        return [(offset, record) for offset, record in self.valid if isinstance(record, Open)]

    def commits(self) -> list[tuple[int, Commit]]:
        """Return every valid commit with its offset."""
        return [(offset, record) for offset, record in self.valid if isinstance(record, Commit)]

    def restarted(self) -> int:
        """Return the offset of the newest Restart, -1 if there is none."""
        return max((offset for offset, record in self.valid if isinstance(record, Restart)), default=-1)

    def writer(self, commit: Commit) -> str:
        """Return the commit's writer."""
        return dict(self.opens())[commit.epoch].writer

    def last_final(self, writer: str) -> int:
        """Return the offset of the writer's last final commit, -1 if there is none."""
        return max((offset for offset, c in self.commits() if c.final and self.writer(c) == writer), default=-1)

    def last(self, writer: str) -> Checkpoint:
        """Return the writer's last checkpoint since its last final commit."""
        since = self.last_final(writer)
        mine = [c.checkpoint for offset, c in self.commits() if self.writer(c) == writer and offset > since]
        return mine[-1] if mine else NO_CHECKPOINT

    def prior(self, writer: str, partitions: tuple[int, ...]) -> int:
        """Return the newest Restart, or valid Open that shares a partition, or the name since its last final commit."""
        since = self.last_final(writer)
        theirs = (
            offset
            for offset, o in self.opens()
            if set(o.partitions) & set(partitions) or (o.writer == writer and offset > since)
        )
        return max([self.restarted(), *theirs])

    def fenced(self, epoch: int) -> bool:
        """Return whether the Open at `epoch` has ended: by a later valid Open that shares a partition or the name, by
        its own final commit, or by a Restart.
        """
        if self.restarted() > epoch:
            return True
        mine = dict(self.opens())[epoch]
        later = [o for offset, o in self.opens() if offset > epoch]
        ended = any(c.final and c.epoch == epoch for _, c in self.commits())
        return ended or any(o.writer == mine.writer or set(o.partitions) & set(mine.partitions) for o in later)

    def committed(self, partition: int) -> int:
        """Return the largest end offset that any valid commit lists in the partition."""
        ends = [end for _, c in self.commits() for mine, _, end in c.extents if mine == partition]
        return max(ends, default=0)

    def _judge_open(self, record: Open) -> VoidReason | None:
        if record.identity != self.identity:
            return VoidReason.OTHER_LOG
        seen = (record.prior, record.last)
        now = (self.prior(record.writer, record.partitions), self.last(record.writer))
        return None if seen == now else VoidReason.STALE_OPEN

    def _judge_commit(self, record: Commit) -> VoidReason | None:
        mine = dict(self.opens()).get(record.epoch)
        if mine is None or mine.nonce != record.nonce:
            return VoidReason.UNKNOWN_EPOCH
        if self.fenced(record.epoch):
            return VoidReason.FENCED
        named = {partition for partition, _, _ in record.extents}
        if record.inline is not None:
            named |= {bit for bit in range(64) if record.inline.partitions >> bit & 1}
        if not named <= set(mine.partitions):
            return VoidReason.NOT_OWNED
        last = self.last(mine.writer)
        if record.base != last:
            return VoidReason.WRONG_BASE
        if record.checkpoint.id <= last.id:
            return VoidReason.NOT_LATER
        return next((void for extent in record.extents if (void := self._judge_extent(extent))), None)

    def _judge_extent(self, extent: Extent) -> VoidReason | None:
        partition, first, end = extent
        if not 0 <= first < end <= 1 << 56:
            return VoidReason.IMPOSSIBLE
        return VoidReason.OVERLAP if first < self.committed(partition) else None
