"""`Following`: one fold of a ledger from a base on, and what it has met: hashes, voids, the record that it read last.

Pure but for memory: it reads nothing. Its owner feeds it every record from its base on, in order, and guards it.

Invariants:
- A record that was taken half leaves it torn, and it is never used again.
- Every record from `compared` on to the position is to be compared before anything is told that rests on it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from statelog.kafka.port import Record
from statelog.schemas.ledger.fold import LedgerBase, LedgerFold, ValidCommit, Void
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, decode
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest

_MOST_VOIDS = 4096
_WINDOW_BYTES = 64 << 20
_EACH_BYTES = 500


class LedgerView(NamedTuple):
    """The ledger folded up to a place, and the snapshot that the fold began with."""

    state: LedgerState
    place: Place
    base: Manifest | None


class Landed(NamedTuple):
    """Where a record of ours stands in the ledger, and why it is void, if it is."""

    offset: int
    void: Void | None


@dataclass(slots=True)
class Following:
    """A fold, and how far it was compared."""

    fold: LedgerFold
    base: LedgerBase | None
    last: LastRecord | None
    """The record that was folded last, if it is known."""
    compared: int
    """Offset of the record that was compared last: the next comparison begins there."""
    compared_s: float = -math.inf
    """When that comparison began, on the owner's clock."""
    voids: dict[int, Void] = field(default_factory=dict[int, Void])
    """Why records are void, by offset: the newest ones."""
    is_torn: bool = False

    @classmethod
    def of(cls, identity: LogIdentity, base: LedgerBase | None) -> "Following":
        """Begin at a base, or with the ledger's first record."""
        if base is None:
            return cls(LedgerFold(identity), None, None, 0)
        last = base.place.last
        fold = LedgerFold(identity, base.state, last)
        return cls(fold, base, last, fold.position if last is None else last.offset)

    @property
    def position(self) -> int:
        """The position up to which it has folded."""
        return self.fold.position

    @property
    def place(self) -> Place:
        """That position, with the record below."""
        return Place(self.fold.position, self.last)

    @property
    def is_at_base(self) -> bool:
        """Whether nothing was folded yet."""
        return self.fold.position == self.fold.start

    def expected(self) -> dict[int, int]:
        """Return the hashes of the records that the next comparison has to find, by offset."""
        return {at: one for at in range(self.compared, self.position) if (one := self.fold.hash_at(at))}

    def take(self, found: Record) -> ValidCommit | None:
        """Fold the next record, and return it if it is a valid commit. Raises Damaged."""
        record, last = decode(found.value), LastRecord.of(found.offset, found.value)
        self.is_torn = True
        # A commit names its epoch alone, and ends its writer's row if it is final: so its writer is asked for before.
        live = self.fold.live_epoch(record.epoch) if isinstance(record, Commit) else None
        void = self.fold.apply(found.offset, record, last.hash)
        self.last = last
        if void is not None:
            self._note_void(found.offset, void)
        self.is_torn = False
        if void is None and isinstance(record, Commit) and live is not None:
            return ValidCommit(live.writer, record, found.timestamp_ms, self.place)
        return None

    def _note_void(self, offset: int, void: Void) -> None:
        self.voids[offset] = void
        if len(self.voids) > _MOST_VOIDS:
            del self.voids[next(iter(self.voids))]


@dataclass(slots=True)
class Window:
    """The newest valid commits: all from a position on."""

    start: int
    commits: deque[ValidCommit] = field(default_factory=deque[ValidCommit])
    size_bytes: int = 0

    def add(self, commit: ValidCommit) -> None:
        """Take the next one, and let the oldest go where all are too large."""
        self.commits.append(commit)
        self.size_bytes += _EACH_BYTES + len(commit.commit.body)
        while self.size_bytes > _WINDOW_BYTES and len(self.commits) > 1:
            self._drop_oldest()

    def between(self, after: int, to: int) -> list[ValidCommit] | None:
        """Return those above one position and up to another; None if it does not reach back so far."""
        if after < self.start:
            return None
        found = list(takewhile(lambda one: one.position > after, reversed(self.commits)))
        return [one for one in reversed(found) if one.position <= to]

    def forget(self, position: int) -> None:
        """Let those up to a position go."""
        while self.commits and self.commits[0].position <= position:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        gone = self.commits.popleft()
        self.size_bytes -= _EACH_BYTES + len(gone.commit.body)
        self.start = gone.position
