"""The tail: what was committed since the newest snapshot, followed on the ledger alone, beside the rounds.

A look asks for the ledger's end and folds what is new; no chunk is read. A gauge starts from the newest manifest, and
is discarded when a round ends: the next one starts from the manifest that is newest then.

Invariants:
- Nothing is decided here, and nothing here is needed for a round to be right.
- One look folds a bounded number of records and of bytes, so that a long ledger is followed in several.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statelog.materializer.daemon.restore_time import RestoreWork
from statelog.schemas.topics.rights import READING
from statelog.seams import REAL, Clock
from statelog.storage.ledger_client import LedgerClient, ValidCommit
from statelog.storage.log.log import Log
from statelog.storage.log.witnesses import check_ledger

__all__ = ["Tail", "TailGauge", "tail_now"]

_LOOK_RECORDS = 16_384
_LOOK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What no snapshot holds, at one look: the commits between the manifest `number` and `position`.

    `oldest_s` is the time of the oldest of these commits, in seconds since 1970, and None if there is none: by the
    broker that appended it, and not later than its first look. `looked_s` is the time of the look, by this machine.

        >>> from statelog.materializer import tail_now
        >>> tail_now(log).age_s
        0.0
    """

    number: int
    position: int
    snapshot_bytes: int
    looked_s: float
    commits: int = 0
    changes: int = 0
    size_bytes: int = 0
    oldest_s: float | None = None

    @property
    def work(self) -> RestoreWork:
        """What a restore would have to do."""
        return RestoreWork(snapshot_bytes=self.snapshot_bytes, tail_bytes=self.size_bytes, tail_changes=self.changes)

    @property
    def age_s(self) -> float:
        """How old the oldest of the commits was at the look; 0 without one."""
        return 0.0 if self.oldest_s is None else max(0.0, self.looked_s - self.oldest_s)


class TailGauge:
    """Follows the tail from the manifest that is the newest at the first look. `clock`: seconds since 1970.

    One look at a time; `close` may come from another thread, and does not wait for a look that hangs.
    """

    def __init__(self, log: Log, *, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._ledger: LedgerClient | None = None
        self._looking = threading.Lock()
        self._is_closed = False
        self._tail = Tail(number=0, position=0, snapshot_bytes=0, looked_s=0.0)

    def look(self) -> Tail:
        """The tail now. Raises OffsetGone if the ledger was truncated past the gauge, Damaged, Unavailable."""
        try:
            with self._looking:
                return self._look()
        finally:
            if self._is_closed:
                self.close()

    def check(self) -> None:
        """Raise BeyondEnd or AnchorMismatch if anything speaks against the ledger as the last look left it."""
        if self._ledger is not None:
            check_ledger(self._log, self._ledger)

    def close(self) -> None:
        """Release the reader; a look that is under way does so when it ends. Idempotent."""
        self._is_closed = True
        if self._looking.acquire(blocking=False):
            try:
                if self._ledger is not None:
                    self._ledger.close()
            finally:
                self._looking.release()

    def _look(self) -> Tail:
        ledger = self._ledger or self._start()
        end_position = min(ledger.end_position(), ledger.fold.position + _LOOK_RECORDS)
        commits = ledger.read_to(end_position, most_bytes=_LOOK_BYTES)
        self._tail = _with(self._tail, commits, ledger.fold.position, self._clock())
        return self._tail

    def _start(self) -> LedgerClient:
        stored = self._log.manifests.newest()
        manifest = stored.manifest if stored else None
        self._ledger = self._log.ledger.client(manifest)
        self._tail = Tail(
            number=manifest.number if manifest else 0,
            position=manifest.position if manifest else 0,
            snapshot_bytes=sum(run.size_bytes for run in manifest.runs) if manifest else 0,
            looked_s=self._clock(),
        )
        return self._ledger


def tail_now(log: Log, *, clock: Clock = REAL.wall_clock) -> Tail:
    """The whole tail up to the ledger's end at this moment. Raises as a look does.

    It reads the ledger, and what chunks that no commit lists say of it:

        >>> from statelog.materializer import tail_now
        >>> tail_now(log).commits
        0
    """
    log.verify(READING)
    end_position = log.kafka.offsets(log.ledger_topic, [0])[0].end
    gauge = TailGauge(log, clock=clock)
    try:
        while (tail := gauge.look()).position < end_position:
            pass
        gauge.check()
        return tail
    finally:
        gauge.close()


def _with(tail: Tail, commits: Sequence[ValidCommit], position: int, now_s: float) -> Tail:
    """The tail with further commits, seen at `now_s`. A commit without a timestamp is as old as its first look, and so
    is one from a time to come. A writer's clock tells nothing: see `kafka.Record`.
    """
    handles = [handle for found in commits for handle in found.commit.read_body().handles]
    times = [min(now_s, found.timestamp_ms / 1000) if found.timestamp_ms >= 0 else now_s for found in commits]
    return Tail(
        number=tail.number,
        position=position,
        snapshot_bytes=tail.snapshot_bytes,
        looked_s=now_s,
        commits=tail.commits + len(commits),
        changes=tail.changes + sum(handle.changes for handle in handles),
        size_bytes=tail.size_bytes + sum(handle.size_bytes for handle in handles),
        oldest_s=min(times if tail.oldest_s is None else [tail.oldest_s, *times], default=None),
    )
