"""Leases on the store: written before a reader checks its plan, renewed as it reads, removed at its end.

It executes; what a lease says and when it has expired is decided in `schemas.snapshot.claims`.

Invariants:
- A lease that can be written is written. A store that refuses writes to us, or is full, costs the lease and a log line:
  then truncation does not wait for this reader, which plans again or fails loudly if it is overtaken.
- No threads: the holder of a lease calls `renew` as it makes progress, as often as it likes.
- A lease is convenience, never safety. So a failed renewal is tolerated as long as the lease still stands, a lease that
  cannot be removed is left to expire, and one that cannot be read holds nothing back. Each of them is a log line.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from statelog.environment import Clock, Environment
from statelog.errors import Corrupt, NotFound, StorageFull, StoreRefused, Unavailable, UnknownFormat
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import Lease
from statelog.storage.store import Store

__all__ = ["HeldLease", "LeaseHolder", "list_leases"]

_LOG = logging.getLogger("statelog.storage")

_RENEWALS_PER_TTL = 3


class HeldLease(NamedTuple):
    """A lease as it lies on the store. `modified_s` is the store's time of its last renewal; see `lease.expired`."""

    lease: Lease
    modified_s: float
    path: str


class LeaseHolder:
    """Holds one lease while it is entered. `clock` only paces the renewals; expiry goes by the store's clock.

    Not `wanted`, it asks the store for nothing and holds nothing.
    """

    def __init__(self, store: Store, lease: Lease, *, clock: Clock = time.monotonic, wanted: bool = True) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._wanted = wanted
        self._written_s = -lease.ttl_s
        self._held = False
        self._is_stale = False

    @classmethod
    def claim(
        cls,
        store: Store,
        *,
        holder: str,
        manifest_number: int,
        position: int,
        next_offsets: Mapping[int, int],
        ttl_s: float,
        wanted: bool = True,
        environment: Environment,
    ) -> "LeaseHolder":
        """A holder of a new lease, which nothing was asked for or written yet.

        `manifest_number` 0 pins no manifest. Raises ConfigError.
        """
        lease = Lease(
            id=environment.new_id(),
            holder=holder,
            manifest_number=manifest_number,
            next_offsets=dict(next_offsets),
            position=position,
            ttl_s=ttl_s,
            created_s=0.0,
        )
        return cls(store, lease, clock=environment.clock, wanted=wanted)

    @property
    def lease(self) -> Lease:
        """The lease as it was written last, or will be."""
        return self._lease

    @property
    def is_held(self) -> bool:
        """Whether the lease lies on the store."""
        return self._held

    def __enter__(self) -> Self:
        """Write the lease, made now by the store's clock; a log line if the store refuses. Raises StoreUnavailable."""
        if self._wanted:
            try:
                self._lease = replace(self._lease, created_s=self._store.now_s())
                self._write()
                self._held = True
            except (StoreRefused, StorageFull) as error:
                _LOG.warning("no lease could be written, so truncation does not wait for this reader: %s", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def renew(self, *, position: int | None = None, next_offsets: Mapping[int, int] | None = None) -> bool:
        """Write the lease again if a third of its time has passed; tells whether it did.

        `position` and `next_offsets` are what the holder needs by now. Raises StoreUnavailable, StoreRefused or
        StorageFull only when the lease has run out since it could last be written.
        """
        if position is not None:
            self._lease = replace(self._lease, position=position)
        if next_offsets is not None:
            self._lease = replace(self._lease, next_offsets=dict(next_offsets))
        age_s = self._clock() - self._written_s
        if not self._held or age_s < self._lease.ttl_s / _RENEWALS_PER_TTL:
            return False
        try:
            self._write()
        except (Unavailable, StoreRefused) as error:
            if age_s >= self._lease.ttl_s:
                raise
            if not self._is_stale:
                left_s = self._lease.ttl_s - age_s
                _LOG.warning("lease %s could not be renewed and runs out in %g s: %s", self._lease.id, left_s, error)
            self._is_stale = True
            return False
        return True

    def release(self) -> None:
        """Remove the lease. Idempotent; never raises, because the lease runs out by itself."""
        if not self._held:
            return
        self._held = False
        try:
            self._store.delete(lease_path(self._lease.id))
        except (Unavailable, StoreRefused) as error:
            text = "lease %s could not be removed and runs out in %g s: %s"
            _LOG.warning(text, self._lease.id, self._lease.ttl_s, error)

    def _write(self) -> None:
        started_s = self._clock()
        self._store.put(lease_path(self._lease.id), self._lease.to_bytes())
        self._written_s = started_s
        self._is_stale = False


def list_leases(store: Store) -> list[HeldLease]:
    """All leases that lie on the store, expired ones too, by path. Raises StoreUnavailable.

    One that cannot be read is left out, with a log line: its reader may have to plan again.
    """
    found: list[HeldLease] = []
    for info in sorted(store.list("leases/")):
        try:
            lease = Lease.from_bytes(store.read(info.path), info.path)
        except NotFound:
            continue  # Its holder removed it since it was listed.
        except (Corrupt, UnknownFormat) as error:
            _LOG.warning("a lease cannot be read and holds nothing back: %s", error)
            continue
        found.append(HeldLease(lease, info.modified_s, info.path))
    return found
