"""`BaseSnapshot`: the snapshot below a table of which not all is local. A lease holds it.

Reads, commits and loads renew the lease in time, on another thread. The base of a table that loads nothing moves on to
the newest eligible snapshot, which its next call takes. A base that is being loaded is replaced only if it cannot be
read, because the next one is loaded from its beginning. See docs/protocol-table.md, R6.

Invariant: under the lock, only the store is waited for.

`Eligibility` decides which snapshots are eligible. The local changes are all those since the first base, so any newer
snapshot serves below them:

- No snapshot is older than the first base: the changes in between would be missing.
- No snapshot has runs in a newer value schema that the table's own does not read.
- A snapshot above the table's place has to show that no other owner came in between. As a rule it also has no commit of
  the table's own above that place. If only such a snapshot is left, it differs from the place in keys that layers above
  the state hold, and in no others.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from typing import TypeVar

import pyarrow as pa

from statelog.errors import ClosedError, Fenced, IncompatibleSchema, NotFound, OffsetGone, StatelogError
from statelog.reading import Hold, Needs, SnapshotFailed, Snapshots, check_manifest
from statelog.recovery.settings import terms_of, tuning_of
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.values.schema import resolve
from statelog.tables.state.snapshot import RemoteSnapshot, RowGroup, SnapshotAccess

_LOG = logging.getLogger("statelog.tables")
_CHECKS_PER_TTL = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """Which snapshots a table may use as its base.

    The table has all changes from `first_position` to `position`, and owns the partitions by its Open at `epoch`.
    `losses`: how many losses a person had accepted when it was opened.
    """

    first_position: int
    position: int
    losses: int
    writer: str
    epoch: int
    partitions: tuple[int, ...]

    def is_overtaken(self, manifest: Manifest) -> bool:
        """Return whether a snapshot above the place has a newer owner of one of the partitions."""
        return manifest.position > self.position and manifest.state.is_overtaken(self.epoch, self.partitions)

    def is_ahead(self, manifest: Manifest) -> bool:
        """Return whether a snapshot has a commit of the table's own at or above its place."""
        return any(row.name == self.writer and row.commit_offset >= self.position for row in manifest.state.writers)

    def needed(self, manifest: Manifest) -> int:
        """Return the position from which on the ledger must be retained: only later records are needed."""
        return max(self.position, manifest.position)

    def allows(self, manifest: Manifest, unreadable: Collection[str]) -> bool:
        """Return whether a snapshot is eligible. One with an unreadable run is not."""
        return (
            manifest.position >= self.first_position
            and len(manifest.state.accepted) <= self.losses
            and not self.is_overtaken(manifest)
            and not any(run.path in unreadable for run in manifest.runs)
        )


class BaseSnapshot:
    """The base of one table. Used by its thread and by the loading thread. Call `release` to close it.

    `epoch` returns the owner's newest Open: an Open that resolved a commit is not another owner's. `moves`: take newer
    snapshots even while this one is readable.
    """

    def __init__(
        self, access: SnapshotAccess, eligibility: Eligibility, epoch: Callable[[], int], *, moves: bool
    ) -> None:
        self._access = access
        self._moves = moves
        self._log, self._snapshots = access.log, Snapshots(access.log)
        self.schema = access.converter.schema
        """The schema of the returned rows."""
        self._eligibility, self._epoch = eligibility, epoch
        self._lock = RLock()
        self._held: RemoteSnapshot | None = None
        self._unreadable: set[str] = set()
        self.replacements = 0
        """How often the base had to be replaced; an earlier count of its rows is invalid."""
        self._pending_check: Future[RemoteSnapshot | None] | None = None
        self._checked_s = access.environment.clock()

    @property
    def snapshot(self) -> RemoteSnapshot:
        """The present base. Raises ClosedError after `release`."""
        if (held := self._held) is None:
            raise ClosedError("the table has released its snapshot")
        return held

    @property
    def has_dues(self) -> bool:
        """Whether a row of the present base may have a due; False after `release`."""
        held = self._held
        return held is not None and any(run.due_rows for run in held.manifest.runs)

    def advance(self, position: int) -> None:
        """Note that the table's place is at `position` now."""
        self._eligibility = replace(self._eligibility, position=position)

    def claim(self, manifest: Manifest | None = None) -> bool:
        """Take this snapshot as the base, or the newest eligible one. Return False if there is none.

        Raises Fenced, ConfigError, StoreUnavailable.
        """
        self._access.opener.hold()
        for _ in range(tuning_of(self._access.settings).attempts):
            chosen = manifest or self._newest(may_be_ahead=True)
            if chosen is None:
                return False
            held = self._claimed(chosen)
            if held is not None:
                self._swap(held)
                return True
            manifest = None
        return False

    def renew(self) -> None:
        """Have the lease renewed if it is due, and newer snapshots looked up if the base moves. Never waits.

        Takes the snapshot that the last check has found.
        """
        if self._pending_check is None:
            now_s = self._access.environment.clock()
            if now_s - self._checked_s < self._access.settings.lease_ttl_s / _CHECKS_PER_TTL:
                return
        with self._lock:
            if self._held is None:
                return
            if self._pending_check is None:
                self._checked_s = self._access.environment.clock()
                self._pending_check = self._access.environment.begin(partial(self._check, self._held))
            if self._pending_check.done():
                found, self._pending_check = self._pending_check.result(), None
                if found is not None:
                    self._swap(found)

    def replace(self, failed: SnapshotFailed, snapshot: RemoteSnapshot) -> None:
        """Replace a snapshot that could not be read. Raises the failure's error if no other one is eligible, Fenced,
        StoreUnavailable.
        """
        with self._lock:
            if self._held is not snapshot or failed.is_copy:
                return
            self._unreadable.add(str(failed.error.facts.get("path")))
            level = logging.INFO if isinstance(failed.error, NotFound) else logging.WARNING  # The lease ended.
            text = "%s: snapshot %d cannot be read: %s"
            _LOG.log(level, text, self._log.name, snapshot.manifest.number, failed.error)
            if not self.claim():
                raise failed.error
            self.replacements += 1
            self._access.environment.crash("base-moved")

    def ask(self, read: Callable[[RemoteSnapshot], T]) -> T:
        """Call `read` with the base, and again with each replacement. Raises the errors of `tables`."""
        while True:
            snapshot = self.snapshot
            try:
                return read(snapshot)
            except (SnapshotFailed, ClosedError) as error:
                self._go_on(error, snapshot)

    def tables(self, read: Callable[[RemoteSnapshot], Iterable[pa.Table]]) -> Iterator[pa.Table]:
        """Yield the tables that `read` makes of the base, by (key group, key). A replacement goes on behind them.

        Raises Fenced, StoreUnavailable, ClosedError; NotFound or Damaged if no other snapshot is readable.
        """
        passed: RowGroup | None = None
        while True:
            snapshot = self.snapshot
            try:
                for table in read(snapshot):
                    rest = table if passed is None else table.slice(RowGroup(table).rows_through(passed))
                    if rest.num_rows:
                        yield rest
                        passed = RowGroup(rest.slice(rest.num_rows - 1))
            except (SnapshotFailed, ClosedError) as error:
                self._go_on(error, snapshot)
            else:
                return

    def _go_on(self, error: SnapshotFailed | ClosedError, snapshot: RemoteSnapshot) -> None:
        """Replace the snapshot that failed. Raises the error of a released base."""
        if isinstance(error, SnapshotFailed):
            self.replace(error, snapshot)
        elif self._held in (None, snapshot):
            raise error

    def release(self) -> None:
        """Release the lease and close the files. Idempotent."""
        with self._lock:
            pending, self._pending_check = self._pending_check, None
            held, self._held = self._held, None
        with ExitStack() as closing:
            closing.callback(self._access.opener.close)
            if held is not None:
                closing.callback(held.close)
                if pending is not None:
                    pending.add_done_callback(partial(_close_found, held))

    def _swap(self, newer: RemoteSnapshot) -> None:
        with self._lock:
            older, self._held = self._held, newer
        if older is not None:
            self._access.environment.begin(older.close)

    def _check(self, held: RemoteSnapshot) -> RemoteSnapshot | None:
        """Renew the lease. Return a newer snapshot, held; None if there is none, or the store does not answer."""
        try:
            position = self._eligibility.needed(held.manifest)
            held.lease.needs = held.lease.needs._replace(position=position)
            held.lease.renew()
            newest = self._newest(may_be_ahead=False) if self._moves else None
            is_newer = newest is not None and newest.number > held.manifest.number
            return self._claimed(newest) if newest is not None and is_newer else None
        except StatelogError as error:
            _LOG.warning("%s: a table could not renew or replace its snapshot: %s", self._log.name, error)
            return None

    def _newest(self, *, may_be_ahead: bool) -> Manifest | None:
        """Return the newest eligible snapshot. With `may_be_ahead`, return one ahead of the place if there is no other.

        Raises Fenced if there is none because of another owner.
        """
        ahead, overtaken = None, False
        for manifest in self._snapshots.listed():
            eligible = replace(self._eligibility, epoch=self._epoch())  # Read after the manifest, so not older.
            overtaken = overtaken or eligible.is_overtaken(manifest)
            if eligible.allows(manifest, self._unreadable) and self._reads(manifest):
                if not eligible.is_ahead(manifest):
                    return manifest
                ahead = ahead or manifest
        if overtaken and ahead is None:
            raise Fenced(
                "another owner took over, and the snapshot that the state was read from is deleted",
                log=self._log.name,
                epoch=self._epoch(),
                hint="Open the table again if this process should have it",
            )
        return ahead if may_be_ahead else None

    def _reads(self, manifest: Manifest) -> bool:
        """Return whether the table's value schema reads every run: other partitions may have a newer one by now."""
        schemas, target = self._log.value_schemas, self._access.converter.target
        try:
            for schema_id in {run.value_schema_id for run in manifest.runs}:
                resolve(target, schemas.get(schema_id))
        except IncompatibleSchema:
            return False
        return True

    def _claimed(self, manifest: Manifest) -> RemoteSnapshot | None:
        """Return the snapshot under a lease; None if it was cleaned up meanwhile."""
        access = self._access
        needs = Needs(self._eligibility.needed(manifest), {}, manifest.number)
        lease = Hold(self._log.store, terms_of(access.settings), environment=access.environment)
        try:
            lease.claim(needs, lambda: check_manifest(self._log, manifest))
        except OffsetGone:
            return None
        return RemoteSnapshot(manifest, access, lease)


def _close_found(held: RemoteSnapshot, pending: "Future[RemoteSnapshot | None]") -> None:
    """Close what a pending check has found, and `held` again: the check may have renewed its lease."""
    held.close()
    if pending.exception() is None and (found := pending.result()) is not None:
        found.close()
