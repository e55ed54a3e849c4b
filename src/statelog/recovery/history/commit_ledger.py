"""`CommitLedger`: the valid commits of a log from a position on, in ledger order, each with its writer.

It folds from a base at or below the position: a snapshot's state, the ledger's first record, or a state that its caller
kept. Reads no chunk, and holds the commits only until they are taken.
"""

import sys
from collections.abc import Collection, Iterable
from typing import NamedTuple, Self

from statelog.closing import Closing
from statelog.recovery.history.change_plan import NamedCommit
from statelog.schemas.ledger.fold import LedgerFold, Void
from statelog.schemas.ledger.identity import LogIdentity
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, LossRange
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.ledger_client import LedgerClient, ValidCommit
from statelog.storage.log.log import Log
from statelog.storage.log.witnesses import check_ledger

__all__ = ["CommitLedger", "LedgerBase", "NamingFold"]


class LedgerBase(NamedTuple):
    """Where a fold of the ledger begins: the folded state, and the record right below it, if it is known."""

    state: LedgerState
    last: LastRecord | None

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """That of a snapshot."""
        return cls(manifest.state, manifest.place.last)

    @classmethod
    def first(cls) -> Self:
        """That of an empty ledger."""
        return cls(LedgerState(), None)


class CommitLedger(Closing):
    """Follows the ledger. Belongs to one thread. Every read raises OffsetGone if the ledger was truncated past it, and
    as the ledger client does.
    """

    def __init__(
        self, log: Log, base: LedgerBase | None, start_position: int = 0, *, seen: Collection[Place] = ()
    ) -> None:
        """Fold from `base` (None: from the ledger's first record) up to `start_position`, which lies not below it, and
        compare what was `seen` there.
        """
        self._log = log
        self._fold = NamingFold(log.descriptor.identity, base.state if base else None)
        if base is None:
            self._ledger = log.ledger.client(None, fold=self._fold)
        else:
            self._ledger = LedgerClient(
                log.kafka,
                log.ledger_topic,
                log.descriptor.identity,
                base.state,
                last=base.last,
                fold=self._fold,
                verify=log.ledger.verify_identity,
            )
        try:
            self._ledger.fold_to(max(start_position, self._fold.position))
            self._ledger.check(seen)
        except BaseException:
            self.close()
            raise
        self._fold.writers.clear()

    @property
    def position(self) -> int:
        """The ledger position up to which commits were taken."""
        return self._fold.position

    @property
    def base(self) -> LedgerBase:
        """The state at the position: where another fold can begin."""
        return LedgerBase(self._fold.freeze(), self._ledger.last)

    @property
    def accepted(self) -> tuple[LossRange, ...]:
        """The ranges that a person gave up, below the position."""
        return self._fold.accepted

    def read_to(self, end_position: int, *, most_bytes: int = sys.maxsize) -> list[NamedCommit]:
        """The commits from the position up to `end_position`, or fewer, once their ledger records have `most_bytes`."""
        found = self._ledger.read_to(end_position, most_bytes=most_bytes)
        return self._fold.take(found)

    def accepted_by(self, end_position: int) -> tuple[LossRange, ...]:
        """The ranges that a person gave up below a position further on. No commit is taken from then on."""
        self._ledger.fold_to(max(end_position, self._fold.position))
        return self._fold.accepted

    def check(self, seen: Collection[Place]) -> None:
        """Whether the ledger, which was folded to its end, is the one that was seen: see `check_ledger`."""
        check_ledger(self._log, self._ledger, places=seen)

    def close(self) -> None:
        """Release the ledger's reader. Idempotent."""
        self._ledger.close()


class NamingFold(LedgerFold):
    """A ledger fold that remembers whose each commit is: by its ledger offset, until somebody takes it.

    A final commit ends its writer's row, so its name has to be asked for right before it is folded.
    """

    def __init__(self, identity: LogIdentity, state: LedgerState | None) -> None:
        super().__init__(identity, state)
        self.writers: dict[int, str] = {}

    def take(self, found: Iterable[ValidCommit]) -> list[NamedCommit]:
        """Commits that were folded, each with its writer, who is forgotten then."""
        return [NamedCommit(self.writers.pop(valid.offset), valid) for valid in found]

    def apply(self, offset: int, record: LedgerRecord | None) -> Void | None:
        """Fold a record, and note the writer of a valid commit."""
        live = self.live_epoch(record.epoch) if isinstance(record, Commit) else None
        void = super().apply(offset, record)
        if live is not None and void is None:
            self.writers[offset] = live.writer
        return void
