"""`Following`: one fold of a ledger from a base, with hashes, voids and the last record. `LedgerRate`: how many bytes
the ledger carries. `Window`: its newest valid commits.

They do no I/O. The owner gives them every record from the base on, in order, and guards them.

Invariants:
- A record that was folded in part leaves a fold torn, and it is never used again.
- Every record from `compared` up to the position is compared again before any answer relies on it.
"""

import gc
import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from statelog.kafka.port import Record
from statelog.schemas.ledger.fold import LedgerBase, LedgerFold, ValidCommit, Void
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, Commits, decode
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest

_MOST_VOIDS = 4096
_WINDOW_BYTES = 64 << 20
_EACH_BYTES = 500
_BYTES_PER_S = 1 << 20
_BURST_BYTES = 8 << 20
_WITNESS_S = 1.0


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector: the objects of a fold stay, and visiting them is a fifth of its cost."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LedgerView(NamedTuple):
    """The ledger folded up to a place, and the snapshot that the fold began with."""

    state: LedgerState
    place: Place
    base: Manifest | None


class Landed(NamedTuple):
    """The offset of a record of ours in the ledger, and why it is void, if it is."""

    offset: int
    void: Void | None


@dataclass(slots=True)
class Following:
    """A fold, and how far it was compared."""

    fold: LedgerFold
    base: LedgerBase | None
    last: LastRecord | None
    """The last folded record, if known."""
    compared: int
    """The offset of the last compared record, where the next comparison begins."""
    compared_s: float = -math.inf
    """When that comparison began, on the owner's clock."""
    voids: dict[tuple[int, int], Void] = field(default_factory=dict[tuple[int, int], Void])
    """Why the newest void records are void, by offset and, of several commits in one record, by index."""
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
        """`position` with the record below it."""
        return Place(self.fold.position, self.last)

    @property
    def is_at_base(self) -> bool:
        """Whether nothing was folded yet."""
        return self.fold.position == self.fold.start

    def expected(self) -> dict[int, int]:
        """Return by offset the hashes of the records that the next comparison must find."""
        return {at: one for at in range(self.compared, self.position) if (one := self.fold.hash_at(at))}

    def take(self, found: Record) -> list[ValidCommit]:
        """Fold the next record. Return its valid commits. Raises Damaged."""
        record, last = decode(found.value), LastRecord.of(found.offset, found.value)
        self.is_torn = True
        commits = (record,) if isinstance(record, Commit) else record.commits if isinstance(record, Commits) else ()
        # Look up writers before folding: a commit names only its epoch, which it ends if it is final.
        lives = [self.fold.live_epoch(commit.epoch) for commit in commits]
        if isinstance(record, Commits):
            voids = self.fold.apply_commits(found.offset, commits, last.hash)
        else:
            voids = [self.fold.apply(found.offset, record, last.hash)]
        self.last = last
        for number, void in enumerate(voids):
            if void is not None:
                self._note_void((found.offset, number), void)
        self.is_torn = False
        place = self.place
        judged = zip(commits, lives, voids, strict=False)
        return [
            ValidCommit(live.writer, commit, found.timestamp_ms, place)
            for commit, live, void in judged
            if void is None and live is not None
        ]

    def _note_void(self, where: tuple[int, int], void: Void) -> None:
        self.voids[where] = void
        if len(self.voids) > _MOST_VOIDS:
            del self.voids[next(iter(self.voids))]


@dataclass(slots=True)
class LedgerRate:
    """How many bytes the ledger carries, by the time of reading: a leaky bucket that drains 1 MiB a second.

    Changes in a ledger record are lost with it, and no chunk's witness would show the loss. So writers add a witness in
    the data topic to such commits: to the first one of a process, and then once a second.
    """

    clock: Callable[[], float]
    _level_bytes: float = 0.0
    _at_s: float = 0.0
    _witnessed_s: float = -math.inf

    def takes_witness(self) -> bool:
        """Return whether a witness is due; the caller then sends one."""
        now_s = self.clock()
        is_due = now_s - self._witnessed_s >= _WITNESS_S
        self._witnessed_s = now_s if is_due else self._witnessed_s
        return is_due

    def add(self, size_bytes: int) -> None:
        """Add a record. The level is bounded, because a backlog was written long ago."""
        self._level_bytes = min(2.0 * _BURST_BYTES, self._level() + size_bytes)
        self._at_s = self.clock()

    @property
    def is_low(self) -> bool:
        """Whether the ledger has carried little of late."""
        return self._level() < _BURST_BYTES

    def _level(self) -> float:
        return max(0.0, self._level_bytes - (self.clock() - self._at_s) * _BYTES_PER_S)


@dataclass(slots=True)
class Window:
    """The newest valid commits: all from a position on."""

    start: int
    commits: deque[ValidCommit] = field(default_factory=deque[ValidCommit])
    size_bytes: int = 0

    def add(self, commit: ValidCommit) -> None:
        """Add the next commit. Drop the oldest ones while all are too large."""
        self.commits.append(commit)
        self.size_bytes += _EACH_BYTES + len(commit.commit.body)
        while self.size_bytes > _WINDOW_BYTES and len(self.commits) > 1:
            self._drop_oldest()

    def between(self, after: int, to: int) -> list[ValidCommit] | None:
        """Return the commits above one position and up to another; None if it does not reach back so far."""
        if after < self.start:
            return None
        found = list(takewhile(lambda one: one.position > after, reversed(self.commits)))
        return [one for one in reversed(found) if one.position <= to]

    def forget(self, position: int) -> None:
        """Drop the commits up to a position."""
        while self.commits and self.commits[0].position <= position:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self.commits.popleft()
        self.size_bytes -= _EACH_BYTES + len(oldest.commit.body)
        self.start = oldest.position
