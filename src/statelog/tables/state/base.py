"""`BaseSnapshot`: the snapshot that a table stands on while not all of its state is local. A lease holds it.

A read, a commit or a load that finds it is time to has the lease renewed, on another thread. The base of a table that
loads nothing moves on to the newest snapshot that the table may stand on, which its next call takes. One that is being
loaded stays, unless it cannot be read: another one would be loaded from its beginning. See docs/protocol-table.md, R6.

Invariant: nothing is waited for under the lock but the store.

Which snapshots will do is `Eligibility`. A table's local changes are all those behind the first that it stood on, and
any newer one is as good below them:

- No snapshot is older than the first one: what was changed in between would be missing.
- None has runs in a newer value schema that the table's own does not read.
- One above the table's place has to show that no other owner came in between, and as a rule none of the table's own
  commits either: the state would not be that of the place. Where only such a one is left, it differs from the place in
  keys alone that layers above the state hold.
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
from statelog.recovery.settings import terms_of
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.values.schema import resolve
from statelog.tables.state.snapshot import RemoteSnapshot, RowGroup, SnapshotAccess

_LOG = logging.getLogger("statelog.tables")
_LOOKS_PER_TTL = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """What a table knows of its history: it has all changes from `first_position` to `position`, and owns the
    partitions by its Open at `epoch`. `losses` is how many losses a person had accepted when it was opened.
    """

    first_position: int
    position: int
    losses: int
    writer: str
    epoch: int
    partitions: tuple[int, ...]

    def is_overtaken(self, manifest: Manifest) -> bool:
        """Whether a snapshot above the place knows a newer owner of one of the partitions."""
        return manifest.position > self.position and manifest.state.is_overtaken(self.epoch, self.partitions)

    def is_ahead(self, manifest: Manifest) -> bool:
        """Whether a snapshot has a commit of the table's own that is not part of its place yet."""
        return any(row.name == self.writer and row.commit_offset >= self.position for row in manifest.state.writers)

    def needed(self, manifest: Manifest) -> int:
        """From where on the ledger has to stay: nothing of it is needed but what is to come."""
        return max(self.position, manifest.position)

    def allows(self, manifest: Manifest, unreadable: Collection[str]) -> bool:
        """Whether the table may stand on a snapshot; not on one with a run that cannot be read."""
        return (
            manifest.position >= self.first_position
            and len(manifest.state.accepted) <= self.losses
            and not self.is_overtaken(manifest)
            and not any(run.path in unreadable for run in manifest.runs)
        )


class BaseSnapshot:
    """The base of one table. Used by its thread and by the one that loads. `let_go` releases lease and files.

    `epoch` says the owner's newest Open: one that settled a commit is no other owner's. `moves`: take newer snapshots,
    also where this one can be read.
    """

    def __init__(
        self, access: SnapshotAccess, eligibility: Eligibility, epoch: Callable[[], int], *, moves: bool
    ) -> None:
        self._access = access
        self._moves = moves
        self._log, self._snapshots = access.log, Snapshots(access.log)
        self.schema = access.converter.schema
        """That of the rows that come out."""
        self._eligibility, self._epoch = eligibility, epoch
        self._lock = RLock()
        self._held: RemoteSnapshot | None = None
        self._unreadable: set[str] = set()
        self.replacements = 0
        """How often it had to be replaced: what was counted before counts no more."""
        self._looking: Future[RemoteSnapshot | None] | None = None
        self._looked_s = access.environment.clock()

    @property
    def snapshot(self) -> RemoteSnapshot:
        """What it is now. Raises ClosedError once it was let go."""
        if (held := self._held) is None:
            raise ClosedError("the table reads no snapshot any more")
        return held

    def stand(self, position: int) -> None:
        """The table's place has moved on."""
        self._eligibility = replace(self._eligibility, position=position)

    def claim(self, manifest: Manifest | None = None) -> bool:
        """Stand on this snapshot, or on the newest that the table may stand on. False if there is none.

        Raises Fenced, ConfigError, StoreUnavailable.
        """
        self._access.opener.hold()
        for _ in range(self._access.settings.attempts):
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
        """Renew the lease, and look for a newer snapshot if it moves, if it is time to; take one that was found. Never
        waits.
        """
        if self._looking is None:
            now_s = self._access.environment.clock()
            if now_s - self._looked_s < self._access.settings.lease_ttl_s / _LOOKS_PER_TTL:
                return
        with self._lock:
            if self._held is None:
                return
            if self._looking is None:
                self._looked_s = self._access.environment.clock()
                self._looking = self._access.environment.begin(partial(self._look, self._held))
            if self._looking.done():
                found, self._looking = self._looking.result(), None
                if found is not None:
                    self._swap(found)

    def replace(self, failed: SnapshotFailed, snapshot: RemoteSnapshot) -> None:
        """A snapshot could not be read: stand on another one from now on. Raises the failure's error if there is none,
        Fenced, StoreUnavailable.
        """
        with self._lock:
            if self._held is not snapshot or failed.is_copy:
                return
            self._unreadable.add(str(failed.error.facts.get("path")))
            level = logging.INFO if isinstance(failed.error, NotFound) else logging.WARNING  # Gone is a lease's end.
            text = "%s: snapshot %d cannot be read: %s"
            _LOG.log(level, text, self._log.name, snapshot.manifest.number, failed.error)
            if not self.claim():
                raise failed.error
            self.replacements += 1
            self._access.environment.crash("base-moved")

    def ask(self, read: Callable[[RemoteSnapshot], T]) -> T:
        """What `read` gives of a snapshot, however many snapshots it takes. Raises as `tables`."""
        while True:
            snapshot = self.snapshot
            try:
                return read(snapshot)
            except (SnapshotFailed, ClosedError) as error:
                self._go_on(error, snapshot)

    def tables(self, read: Callable[[RemoteSnapshot], Iterable[pa.Table]]) -> Iterator[pa.Table]:
        """What `read` gives of a snapshot, by (key group, key), however many snapshots it takes.

        Raises Fenced, StoreUnavailable; NotFound or Damaged if no other snapshot is readable; ClosedError.
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
        """What this snapshot failed with is over once there is another one."""
        if isinstance(error, SnapshotFailed):
            self.replace(error, snapshot)
        elif self._held in (None, snapshot):
            raise error

    def let_go(self) -> None:
        """Release the lease and close the files. Idempotent."""
        with self._lock:
            looking, self._looking = self._looking, None
            held, self._held = self._held, None
        with ExitStack() as closing:
            closing.callback(self._access.opener.close)
            if held is not None:
                closing.callback(held.close)
                if looking is not None:
                    looking.add_done_callback(partial(_close_found, held))

    def _swap(self, newer: RemoteSnapshot) -> None:
        with self._lock:
            older, self._held = self._held, newer
        if older is not None:
            self._access.environment.begin(older.close)

    def _look(self, held: RemoteSnapshot) -> RemoteSnapshot | None:
        """Renew the lease. Return a newer snapshot, held; None if there is none, or the store does not say."""
        try:
            position = self._eligibility.needed(held.manifest)
            held.lease.needs = held.lease.needs._replace(position=position)
            held.lease.renew()
            newest = self._newest(may_be_ahead=False) if self._moves else None
            is_newer = newest is not None and newest.number > held.manifest.number
            return self._claimed(newest) if newest is not None and is_newer else None
        except StatelogError as error:
            _LOG.warning("%s: the snapshot that a table reads was not moved on: %s", self._log.name, error)
            return None

    def _newest(self, *, may_be_ahead: bool) -> Manifest | None:
        """The newest snapshot that the table may stand on; one ahead of its place only if it may, and has no other.

        Raises Fenced if another owner is why there is none.
        """
        ahead, overtaken = None, False
        for manifest in self._snapshots.listed():
            eligible = replace(self._eligibility, epoch=self._epoch())  # Not older than what is judged by it.
            overtaken = overtaken or eligible.is_overtaken(manifest)
            if eligible.allows(manifest, self._unreadable) and self._reads(manifest):
                if not eligible.is_ahead(manifest):
                    return manifest
                ahead = ahead or manifest
        if overtaken and ahead is None:
            raise Fenced(
                "another owner took over, and the snapshot that the state was read from is gone",
                log=self._log.name,
                epoch=self._epoch(),
                hint="Open the table again if this process should have it",
            )
        return ahead if may_be_ahead else None

    def _reads(self, manifest: Manifest) -> bool:
        """Whether the table's value schema reads that of every run: other partitions may have a newer one by now."""
        schemas, target = self._log.value_schemas, self._access.converter.target
        try:
            for schema_id in {run.value_schema_id for run in manifest.runs}:
                resolve(target, schemas.get(schema_id))
        except IncompatibleSchema:
            return False
        return True

    def _claimed(self, manifest: Manifest) -> RemoteSnapshot | None:
        """A snapshot under a lease; None if it was cleaned up meanwhile."""
        access = self._access
        needs = Needs(self._eligibility.needed(manifest), {}, manifest.number)
        lease = Hold(self._log.store, terms_of(access.settings), environment=access.environment)
        try:
            lease.claim(needs, lambda: check_manifest(self._log, manifest))
        except OffsetGone:
            return None
        return RemoteSnapshot(manifest, access, lease)


def _close_found(held: RemoteSnapshot, looking: "Future[RemoteSnapshot | None]") -> None:
    """Also what was held, once more: who looks may have written its lease again."""
    held.close()
    if looking.exception() is None and (found := looking.result()) is not None:
        found.close()
