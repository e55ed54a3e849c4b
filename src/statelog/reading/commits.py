"""`Commits`: the ledger of a log, folded commit by commit from a base on.

Each commit comes with its writer, its place in the ledger and the broker's time. Reads no chunk, decides nothing about
validity (`schemas.ledger.fold` does), and keeps no commit that was taken.

Invariants:
- The base lies at or below the first commit that is taken: a snapshot's state, a subscription's, the ledger's first
  record, or a state that the caller kept.
- What the caller remembers of the ledger is compared before anything is taken.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from statelog.closing import Closing
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LastCommit, LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.kafka import OffsetRange
from statelog.storage.ledger_client import LedgerBase, ValidCommit
from statelog.storage.log.evidence import check_ledger
from statelog.storage.log.log import Log


class Folded(NamedTuple):
    """The ledger folded up to a place: where another fold can begin."""

    state: LedgerState = LedgerState()
    place: Place = ORIGIN


class Folding(NamedTuple):
    """A fold of the ledger that was checked: the snapshot where it began (None: the first record), the valid commits
    behind that, and where they lead.
    """

    base: Manifest | None
    commits: Sequence[ValidCommit]
    folded: Folded

    @property
    def start(self) -> int:
        """The ledger position where it began."""
        return self.base.position if self.base else 0


class Commits(Closing):
    """Follows the ledger. Belongs to one thread. Every read raises OffsetGone if the ledger was truncated past it, and
    as the ledger client does.
    """

    def __init__(
        self,
        log: Log,
        base: LedgerBase | None,
        start_position: int = 0,
        *,
        seen: Collection[Place] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fold from `base` (None: from the ledger's first record) up to `start_position`, unless the base lies above
        it, and compare what was `seen` there.
        """
        self._log = log
        self._ledger = log.ledger.client(base, clock=clock)
        try:
            if start_position > self.position:
                self._ledger.fold_to(start_position)
            self._ledger.check(seen)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """The ledger position up to which commits were taken."""
        return self._ledger.fold.position

    @property
    def place(self) -> Place:
        """That position, and the ledger record below it."""
        return self._ledger.place

    @property
    def folded(self) -> Folded:
        """The ledger up to the position: a copy, where another fold can begin."""
        return Folded(self._ledger.fold.freeze(), self._ledger.place)

    @property
    def accepted(self) -> tuple[LossRange, ...]:
        """The ranges that a person gave up, below the position."""
        return self._ledger.fold.accepted

    def last_commit(self, writer: str) -> LastCommit | None:
        """A writer's last commit below the position."""
        return self._ledger.fold.last_commit(writer)

    def end_position(self) -> int:
        """The ledger's end now: a target to take once. Raises BrokerUnavailable."""
        return self._ledger.end_position()

    def read_to(self, end_position: int, *, most_bytes: int = sys.maxsize) -> list[ValidCommit]:
        """The commits from the position up to `end_position`, or fewer, once their ledger records have `most_bytes`."""
        return self._ledger.read_to(end_position, most_bytes=most_bytes)

    def read_end(self) -> list[ValidCommit]:
        """The commits from the position up to the ledger's end now. Raises BeyondEnd if it ends below the position."""
        return self._ledger.read_end()

    def pass_to(self, end_position: int) -> None:
        """Fold up to a position, if it lies further on, and take no commit."""
        if end_position > self.position:
            self._ledger.fold_to(end_position)

    def check(self, seen: Collection[Place] = (), *, there: Mapping[int, OffsetRange] | None = None) -> None:
        """Whether the ledger, which was folded to its end, is the one that was seen: see `check_ledger`."""
        check_ledger(self._log, self._ledger, places=seen, there=there)

    def close(self) -> None:
        """Release the ledger's reader. Idempotent."""
        self._ledger.close()
