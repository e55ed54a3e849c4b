"""The target of a round: the ledger position up to which it rolls up, and the commits below it.

A manifest's state must be the fold exactly at its position. So the fold goes on in steps, each from a frozen state;
where the budget ends inside a step, that step is folded once more, up to the last commit within the budget.

Invariants:
- The end of the ledger is asked for once. The target is at most that, and at least the first commit's next offset.
- The state is the fold of every ledger record below the target, and of none at or above it.
"""

from dataclasses import dataclass

from statelog.materializer.settings import MaterializerSettings
from statelog.reading.commits import Commits
from statelog.schemas.ledger.records import CommitBody
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.ledger_client import ValidCommit
from statelog.storage.log.log import Log

__all__ = ["Target", "choose_target"]

_STEP_RECORDS = 4096
_STEP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The folded ledger at the round's position, and the valid commits since the manifest before it.

    `end_position` was the ledger's end when the target was taken; `behind` says whether commits are left below it.
    """

    state: LedgerState
    commits: tuple[CommitBody, ...]
    end_position: int
    behind: bool

    @property
    def position(self) -> int:
        """The position of the round's manifest."""
        return self.state.position


def choose_target(log: Log, newest: Manifest | None, settings: MaterializerSettings) -> Target:
    """Fold the ledger from the newest manifest on, up to its end now or to where the budget ends.

    Raises OffsetGone, BeyondEnd, AnchorMismatch, CorruptLedger, UnknownFormat, BrokerUnavailable.
    """
    with Commits(log, newest) as ledger:
        target = _fold(log, ledger, ledger.end_position(), _Budget(settings))
        ledger.pass_to(target.end_position)  # What no commit lists yet begins behind the last of them all.
        ledger.check()
        return target


class _Budget:
    """What is left of a round's budget."""

    def __init__(self, settings: MaterializerSettings) -> None:
        self._bytes = settings.budget_bytes
        self._commits = settings.budget_commits
        self.taken: list[CommitBody] = []

    def take(self, commits: list[ValidCommit]) -> int | None:
        """Take commits until one does not fit; that one's ledger offset, or None if all of them fitted."""
        for found in commits:
            # Its own record, too: metadata is held for all commits of a round, and may be 16 MiB each.
            size_bytes = len(found.commit.body) + sum(handle.size_bytes for handle in found.body.handles)
            if self.taken and (size_bytes > self._bytes or not self._commits):
                return found.offset
            self._bytes -= size_bytes
            self._commits -= 1
            self.taken.append(found.body)
        return None


def _fold(log: Log, ledger: Commits, end_position: int, budget: _Budget) -> Target:
    while ledger.position < end_position:
        before = ledger.folded
        step = min(ledger.position + _STEP_RECORDS, end_position)
        refused = budget.take(ledger.read_to(step, most_bytes=_STEP_BYTES))
        if refused is not None:
            with Commits(log, before, refused) as again:
                state = again.folded.state
            return Target(state=state, commits=tuple(budget.taken), end_position=end_position, behind=True)
    state = ledger.folded.state
    return Target(state=state, commits=tuple(budget.taken), end_position=end_position, behind=False)
