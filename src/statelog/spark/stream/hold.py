"""What keeps a stream's place from truncation: a subscription, if the query names a reader, else a lease.

A subscription holds while the query is stopped, too. A lease holds for its time after the last micro-batch began, and
is replaced every hour, because no lease may live longer than the materializer allows.

Invariant: only places that Spark has committed are held, so a query that is started again finds its own there.
"""

from collections.abc import Callable

from statelog.environment import current_environment
from statelog.reading.hold import Hold, Needs
from statelog.schemas.snapshot.claims import check_holder
from statelog.spark.options import StreamOptions
from statelog.spark.parts import lease_terms
from statelog.storage.held_subscription import HeldSubscription
from statelog.storage.ledger_client import LedgerBase
from statelog.storage.log.log import Log

__all__ = ["StreamHold"]

_MOVE_S = 30.0
_ANEW_S = 3600.0


class StreamHold:
    """Holds one reading's place. Belongs to one thread."""

    def __init__(self, log: Log, options: StreamOptions, reading: str) -> None:
        self._log = log
        self._options = options
        self._environment = current_environment()
        self._lease: Hold | None = None
        self._lease_s = 0.0
        self._held_s: float | None = None
        self._position = -1
        self._is_taken_up = False
        self.reading = reading
        self._subscription = None
        if options.reader is not None:
            self._subscription = HeldSubscription(
                log, options.reader, holder_id=reading, holder=f"Spark stream {reading}"
            )

    def kept_base(self) -> LedgerBase | None:
        """The fold that the reader's subscription carries, if there is one. Raises SubscriptionEnded, ReaderInUse."""
        found = self._subscription.newest() if self._subscription else None
        check_holder(found, self.reading)
        if found is None or found.identity != self._log.descriptor.identity:
            return None
        return found

    def move(self, position: int, base: Callable[[], LedgerBase], *, at_once: bool = False) -> None:
        """Hold a committed position, if it is time to, or `at_once`; `base` is the fold there.

        Raises SubscriptionEnded, ReaderInUse, OffsetGone, StoreRefused, Unavailable.
        """
        now_s = self._environment.clock()
        if self._lease is not None:
            self._lease.renew()
        is_new = position != self._position
        least_s = 0.0 if at_once else _MOVE_S
        if self._held_s is None or now_s - self._held_s >= (least_s if is_new else _ANEW_S):
            self._hold(base(), take_up=self._is_taken_up)

    def take_up(self, base: Callable[[], LedgerBase]) -> None:
        """Spark has the reading in its checkpoint: from now on nobody else takes its reader id."""
        if not self._is_taken_up:
            self._is_taken_up = True
            if self._subscription is not None:
                self._hold(base(), take_up=True)

    def release(self) -> None:
        """Let a lease go; a subscription stays."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _hold(self, base: LedgerBase, *, take_up: bool) -> None:
        if self._subscription is not None:
            self._subscription.hold(base.state, base.place.last, take_up=take_up)
        else:
            self._hold_lease(base)
        self._position, self._held_s = base.state.position, self._environment.clock()

    def _hold_lease(self, base: LedgerBase) -> None:
        committed, terms = base.state.committed_positions, lease_terms(self._options.lease_s, "spark-stream")
        next_offsets = {p: committed.get(p, 0) for p in range(self._log.descriptor.partitions)}
        lease = Hold(self._log.store, terms, Needs(base.state.position, next_offsets), environment=self._environment)
        self.release()
        self._lease = lease
