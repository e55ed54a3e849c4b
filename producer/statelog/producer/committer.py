"""The committer: writes commits under a grant and settles the ones whose outcome is unknown.

Used by a writer, by a coordinator whose tasks run elsewhere, and by Spark's commit process.

Invariants:
- The ledger decides whether a commit is valid; a timeout decides nothing.
- A commit is never sent twice. If its outcome is unknown, a new Open (through a new producer) settles it: the commit
  lies before that Open and is valid, or it never will be. Only then are the same handles committed again.
- A re-open never takes the epoch back from somebody else.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from statelog.producer.commit import make_commit, refused
from statelog.producer.grant import Grant
from statelog.producer.opening import Opened, open_epoch, random_nonce
from statelog.schemas.errors import Fenced, OutcomeUnknown
from statelog.schemas.handle import Checkpoint, Handle
from statelog.schemas.ledger import Commit
from statelog.schemas.ledger_state import LastCommit
from statelog.storage.ledger_client import append_record
from statelog.storage.log import Log

__all__ = ["Committer", "nowhere"]

_SETTLE_ATTEMPTS = 3


def nowhere(_: str) -> None:
    """The crash point that does nothing."""


class Committer:
    """Commits handles for one writer. Owns the clients in `opened`, which a settled outcome replaces."""

    def __init__(
        self,
        log: Log,
        opened: Opened,
        *,
        new_nonce: Callable[[], bytes] = random_nonce,
        clock: Callable[[], float] = time.monotonic,
        crash: Callable[[str], None] = nowhere,
    ) -> None:
        self.opened = opened
        self.last = opened.ledger.fold.last_commit(opened.grant.writer)
        self._log = log
        self._new_nonce = new_nonce
        self._clock = clock
        self._crash = crash

    @property
    def grant(self) -> Grant:
        """The grant that commits are written under now."""
        return self.opened.grant

    @property
    def base(self) -> Checkpoint:
        """The checkpoint that the next commit continues."""
        return self.last.checkpoint if self.last else self.grant.base

    def commit(
        self,
        handles: Sequence[Handle],
        checkpoint_id: int,
        metadata: Mapping[str, str],
        *,
        final: bool = False,
        settle: bool = True,
    ) -> LastCommit:
        """Commit and return once the ledger shows it valid. With `settle` an unknown outcome is settled first.

        Raises CheckpointMismatch and other misuse before anything is sent; Fenced, CommitRefused; OutcomeUnknown if it
        could not be settled (or must not be); Damaged, Unavailable.
        """
        commit = make_commit(self.grant, self.base, handles, checkpoint_id, metadata, final=final)
        self._crash("commit-made")
        try:
            offset = self._append(commit)
        except OutcomeUnknown as error:
            if not settle:
                raise
            offset = self._settle(commit, handles, metadata, error)
        self._crash("committed")
        self.last = LastCommit(commit.checkpoint, offset, dict(metadata))
        return self.last

    def close(self) -> None:
        """Release the clients. Idempotent."""
        self.opened.close()

    def _append(self, commit: Commit) -> int:
        offset = append_record(self.opened.producer, self._log.ledger_topic, commit, clock=self._clock)
        void = self.opened.ledger.verdict(offset, commit)
        if void is not None:
            raise refused(void, self.grant, commit.checkpoint.id)
        return offset

    def _settle(
        self, commit: Commit, handles: Sequence[Handle], metadata: Mapping[str, str], error: OutcomeUnknown
    ) -> int:
        for _ in range(_SETTLE_ATTEMPTS):
            found = self._reopen(commit)
            if found is not None:
                return found
            again = make_commit(self.grant, self.base, handles, commit.checkpoint.id, metadata, final=commit.final)
            try:
                return self._append(again)
            except OutcomeUnknown as newer:
                error, commit = newer, again
        raise error

    def _reopen(self, commit: Commit) -> int | None:
        """Take the epoch anew; returns the offset of `commit` if the ledger shows it valid."""
        old = self.opened
        old.producer.close()
        try:
            self.opened = open_epoch(
                self._log,
                old.grant.writer,
                partitions=old.grant.partitions,
                ours=[old.grant.nonce],
                new_nonce=self._new_nonce,
                clock=self._clock,
            )
        except Fenced:
            return self._settled_by_another(commit)
        old.close()
        return self._valid_offset(commit)

    def _settled_by_another(self, commit: Commit) -> int:
        """Somebody else's Open settled the commit, which may be valid all the same. This grant is over either way."""
        self.opened.ledger.read_end()
        offset = self._valid_offset(commit)
        if offset is None:
            raise Fenced(
                "another writer took over before the commit",
                writer=self.grant.writer,
                checkpoint=commit.checkpoint.id,
            )
        return offset

    def _valid_offset(self, commit: Commit) -> int | None:
        last = self.opened.ledger.fold.last_commit(self.grant.writer)
        return last.offset if last is not None and last.checkpoint == commit.checkpoint else None
