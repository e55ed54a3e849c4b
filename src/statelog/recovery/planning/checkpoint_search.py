"""Finds the commit of a writer's checkpoint while folding the ledger. Pure.

A commit names its epoch, not its writer, and it ends its writer's row if it is final. So whose it is has to be asked
of the fold right before the commit is folded.
"""

from statelog.recovery.planning.at import AtCheckpoint
from statelog.schemas.ledger.fold import LedgerFold, Void
from statelog.schemas.ledger.identity import LogIdentity
from statelog.schemas.ledger.records import Commit, LedgerRecord
from statelog.schemas.ledger.state import LedgerState

__all__ = ["CheckpointSearch"]


class CheckpointSearch(LedgerFold):
    """A ledger fold that remembers where the newest valid commit of one checkpoint was."""

    def __init__(self, identity: LogIdentity, state: LedgerState | None, at: AtCheckpoint) -> None:
        super().__init__(identity, state)
        self._at = at
        self.found_position: int | None = None

    def apply(self, offset: int, record: LedgerRecord | None) -> Void | None:
        """Fold a record, and note the position behind it if it is the commit."""
        is_it = isinstance(record, Commit) and self._is_it(record)
        void = super().apply(offset, record)
        if is_it and void is None:
            self.found_position = offset + 1
        return void

    def _is_it(self, commit: Commit) -> bool:
        live = self.live_epoch(commit.epoch)
        return live is not None and live.writer == self._at.writer and commit.checkpoint.id == self._at.checkpoint_id
