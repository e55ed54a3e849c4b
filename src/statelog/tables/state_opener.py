"""`StateOpener`: opens the state of a table. It brings an `ExistingState` up to date, or makes a new one next to it.

A new state is a whole one from a recovery, or an empty store above the newest snapshot. Each step, with "if we die
here": docs/protocol-table.md, 5 to 9 and R1 to R5.

Invariants:
- A database is used only if its place is part of the history below the place that it has to reach. An owner checks that
  before its Open, which could take the offset of a lost record.
- A database that proves a loss is the only copy of the lost changes. It stays untouched, and is reported, until a
  person has accepted the loss; even then it is never deleted.
- A new database is renamed to its place once it has everything that was committed after its snapshot.
- A base is held from before its commits are read until the state has it.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statelog.errors import AnchorMismatch, BeyondEnd, BrokerUnavailable, Corrupt, Fenced, NotFound, OffsetGone
from statelog.log import Log
from statelog.producer import Writer
from statelog.reading import (
    Folding,
    HeldPlan,
    make_change_plan,
    make_plan,
    place_at,
    plan_of,
    retry_planning,
    warn_if_aged,
)
from statelog.recovery import AtPosition, Plan, Recovery, newest_changes, plan_changes
from statelog.recovery.settings import terms_of, tuning_of
from statelog.schemas.changes.due import only_used
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.store.disk.disk import is_there
from statelog.tables.setup import Loading, TableSetup
from statelog.tables.state.base import BaseSnapshot, Eligibility
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.snapshot import SnapshotAccess
from statelog.tables.state.state import State, Store
from statelog.tables.state.store import (
    DictStore,
    Missing,
    StatePlace,
    difference,
    is_of_log,
    is_of_topics,
    table_record,
)
from statelog.tables.state.values import ValueRule

if TYPE_CHECKING:
    from statelog.tables.state.rocksdb import RocksdbStore


class Unfit(NamedTuple):
    """Why a database cannot be used. `has_lost`: it may have changes accepted as lost, so nothing deletes it."""

    reason: str
    has_lost: bool = False


_LOST = Unfit("the ledger lost records below its place, which a person has accepted", has_lost=True)
_OTHER_TOPICS = Unfit("its topics were lost, which a person has accepted", has_lost=True)
_OTHER_LOSSES = Unfit("a loss was accepted since, and it may have the lost changes", has_lost=True)
_FIT = Unfit("")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """How a table was opened.

    `position`: of the state, at or above the owner's Open.
    `from_position`: of the local directory, from which on commits were read; None if the state was rebuilt.
    `rows_read`: rows read before the table opened, of the whole state or of commits after directory or snapshot.
    `set_aside`: the new path of a directory that could not be used; `reason`: why.
    """

    position: int
    from_position: int | None = None
    rows_read: int = 0
    set_aside: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted state: its place and values, as an owner with a valid Open has them, or for a standby a recovery.

    `folding`: what the Open has folded of the ledger, so that nothing is folded twice.
    """

    place: StatePlace
    values: ValueRule
    writer: Writer | None = None
    recovery: Recovery | None = None
    folding: Folding | None = None

    @classmethod
    def by(cls, writer: Writer, folding: Folding | None = None) -> "Wanted":
        """Return the state that an owner wants: at its Open, since which nobody can have changed its key groups."""
        return cls(
            place=StatePlace.of(writer), values=ValueRule(writer.grant.value_schema), writer=writer, folding=folding
        )

    def check_final(self, read: LedgerState) -> None:
        """Raise Fenced if a newer owner's Open is in the ledger that was read, so that the state is another's."""
        grant = None if self.writer is None else self.writer.grant
        if grant is not None and read.is_overtaken(grant.epoch, grant.partitions):
            raise Fenced(
                "another owner took over while the state was read",
                **grant.facts,
                epoch=grant.epoch,
                hint="Open the table again if this process should have it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingState:
    """The state of an earlier process: a `store` that can be used, or why there is none.

    `place`: of the database, if it has one. `values`: the required ones.
    `may_lack`: a part of the state may be in a snapshot only.
    `in_use`: closes a state that is read until its replacement is made, given the place of that, and returns why.
    """

    store: "RocksdbStore | None" = None
    unfit: Unfit = _FIT
    place: StatePlace | None = None
    values: ValueRule | None = None
    may_lack: bool = False
    in_use: Callable[[StatePlace], Unfit] | None = None

    @classmethod
    def found(cls, setup: TableSetup, values: ValueRule, *, may_lack: bool = False) -> "ExistingState":
        """Open the existing database, if any, and compare its place with the ledger. The directory closes it.

        Raises BeyondEnd or AnchorMismatch if it proves a loss that nobody has accepted, StorageFull, Damaged,
        Unavailable.
        """
        store, unfit, place = None, _FIT, None
        if setup.directory is not None:
            setup.directory.drop_unsynced(setup.environment.boot_id())
            if is_there(setup.directory.database):
                store, unfit, place = _examined(setup, setup.directory, values, may_lack=may_lack)
        return cls(store=store, unfit=unfit, place=place, values=values, may_lack=may_lack)

    def with_values(self, setup: TableSetup, values: ValueRule) -> "ExistingState":
        """Return the same for these values, found again if their schema differs. Raises the errors of `found`."""
        if self.values is None or self.values.schema == values.schema:
            return self
        if self.store is not None:
            self.store.close()
        return ExistingState.found(setup, values, may_lack=self.may_lack)

    def replaced(self, unfit: Unfit, place: StatePlace) -> Unfit:
        """Return why a state that was made at `place` replaces it. Closes a state in use."""
        if self.in_use is not None:
            return self.in_use(place)
        has_lost = self.place is not None and self.place.may_have_lost(place)
        return unfit._replace(has_lost=unfit.has_lost or has_lost)


class StateOpener:
    """Opens the wanted state of a table once, in its directory or in a dict. `on_step` is called often."""

    def __init__(self, setup: TableSetup, wanted: Wanted, *, on_step: Callable[[], None] = lambda: None) -> None:
        self._setup, self._wanted, self._on_step = setup, wanted, on_step
        self._recovery = replace(setup.settings.recovery, value_schema_id=wanted.values.schema.id)
        self._base: BaseSnapshot | None = None

    def open(self, existing: ExistingState) -> tuple[State, OpenReport]:
        """Open the state, existing or new, and report how.

        Raises BeyondEnd or AnchorMismatch for a proof of loss; Fenced, Damaged, NotFound, StorageFull, Unavailable.
        """
        existing = existing.with_values(self._setup, self._wanted.values)
        with ExitStack() as undo:
            undo.callback(self._release_base)
            found = self._caught_up(existing)
            if isinstance(found, Unfit):
                made, rows = self._make()
                found = self._put_in_place(made, rows, existing.replaced(found, self._wanted.place))
            store, report = found
            state = State(store, self._setup.keys, self._wanted.values, self._base)
            undo.callback(state.close)
            loaded = self._load(state)
            undo.pop_all()
        return state, replace(report, rows_read=report.rows_read + loaded)

    # ---- an existing state

    def _caught_up(self, existing: ExistingState) -> tuple[Store, OpenReport] | Unfit:
        """Bring an existing store to the wanted place, with a base for its missing part; or return why it is unfit."""
        store, wanted = existing.store, self._wanted.place
        if store is None:
            return existing.unfit
        with ExitStack() as undo:
            undo.callback(store.close)
            place = store.place
            if place.position > wanted.position:
                raise BrokerUnavailable("Kafka gave an old end of the ledger", position=wanted.position)
            if place.may_have_lost(wanted):
                return _OTHER_LOSSES
            try:
                rows = self._read_behind(store, place.position, self._wanted.folding)
            except (NotFound, OffsetGone):
                return Unfit("the log was truncated past it")
            self._setup.environment.crash("caught-up")
            store.move(wanted)
            if store.missing and not self._take_base(store.first_position):
                return Unfit("no snapshot has its missing part any more")
            undo.pop_all()
        return store, OpenReport(position=wanted.position, from_position=place.position, rows_read=rows)

    def _read_behind(self, store: Store, start: int, folding: Folding | None) -> int:
        """Load everything committed after a position, and return the number of rows. Raises OffsetGone, NotFound."""
        rows, plan = 0, self._changes_since(start, folding)
        self._wanted.check_final(plan.state)
        if not plan.is_empty:
            log, settings = self._setup.log, self._recovery
            newest = self._setup.environment.run(newest_changes, log, plan, due=True, settings=settings)
            with closing(newest) as tables:
                for table in tables:
                    store.load(only_used(table))
                    rows += table.num_rows
                    self._on_step()
        return rows

    def _changes_since(self, start: int, folding: Folding | None) -> Plan:
        """Plan the commits after a position, from what the Open has folded if that has them all."""
        groups, schema_id = self._setup.keys.owned, self._wanted.values.schema.id
        if folding is not None and folding.start <= start:
            self._setup.environment.run(warn_if_aged, self._setup.log, folding)
            return make_change_plan(
                self._setup.log.descriptor,
                [commit for commit in folding.commits if commit.position > start],
                folding.folded,
                start_position=start,
                value_schema_id=schema_id,
                key_groups=groups,
                accepted=folding.folded.state.accepted,
            )
        return plan_changes(
            self._setup.log,
            AtPosition(start),
            None if self._wanted.writer is not None else AtPosition(self._wanted.place.position),
            key_groups=groups,
            value_schema_id=schema_id,
            seen=[self._wanted.place.ledger],
        )

    # ---- a new state

    def _make(self) -> tuple[Store, int]:
        """Make a new state, closed if it is on a disk, and return it with the number of rows read."""
        is_first = self._wanted.writer is None or self._setup.settings.loading is Loading.FIRST
        foldings = chain([self._wanted.folding], repeat(None))  # A retry takes the newest snapshot.
        partial = None if is_first else retry_planning(lambda: self._partial(next(foldings)))
        store, rows = self._whole() if partial is None else partial
        try:
            store.adopt(
                table_record(self._setup.log.descriptor, self._wanted.values.schema, self._setup.keys.owned),
                self._wanted.place,
            )
        finally:
            store.close()
        return store, rows

    def _partial(self, folding: Folding | None) -> tuple[Store, int] | None:
        """Make a store of the commits after the newest snapshot, which has the rest. Return it with the number of rows;
        None if there is no snapshot. Raises OffsetGone, NotFound if the log was truncated meanwhile.
        """
        log, keys, directory = self._setup.log, self._setup.keys, self._setup.directory
        manifest = log.manifests.newest() if folding is None else folding.base
        if manifest is None or not make_plan(log.descriptor, manifest, manifest, (), keys.owned).runs:
            return None
        with ExitStack() as undo:
            undo.callback(self._release_base)
            missing = Missing(manifest.position, frozenset(keys.groups))
            if directory is None:
                store: Store = DictStore(keys, self._wanted.values, {}, missing)
            else:
                directory.begin()
                store = _database(self._setup, self._wanted.values, directory.unfinished, missing)
            undo.callback(store.close)
            if not self._take_base(manifest.position, manifest):
                raise OffsetGone("the snapshot was cleaned up while a table was opened", log=log.name)
            rows = self._read_behind(store, manifest.position, folding)
            self._setup.environment.crash("tail-folded")
            undo.pop_all()
        return store, rows

    def _whole(self) -> tuple[Store, int]:
        values, directory = self._wanted.values, self._setup.directory
        with self._wanted.recovery or Recovery(self._planned(), self._recovery, lambda _: self._on_step()) as recovery:
            if directory is None:
                store = DictStore.recovered(recovery, self._setup.keys, values)
                self._wanted.check_final(recovery.plan.state)
                return store, len(store)
            directory.begin()
            rows = recovery.to_rocksdb(directory.unfinished)
            self._wanted.check_final(recovery.plan.state)
        self._setup.environment.crash("recovered")
        return _database(self._setup, values, directory.unfinished), rows

    def _planned(self) -> HeldPlan:
        """Plan the recovery of the state at the wanted place or above, from what the Open has folded, if anything."""
        folding, settings, groups = self._wanted.folding, self._recovery, self._setup.keys.owned
        plan = None if folding is None else plan_of(self._setup.log, folding, groups)
        seen, attempts = [self._wanted.place.ledger], tuning_of(settings).attempts
        return self._setup.environment.run(
            HeldPlan, self._setup.log, terms_of(settings), None, groups, seen=seen, attempts=attempts, plan=plan
        )

    def _put_in_place(self, made: Store, rows: int, unfit: Unfit) -> tuple[Store, OpenReport]:
        """Put a new state in its place, and report it. An unfit database is set aside, with a warning."""
        aside, directory, environment = None, self._setup.directory, self._setup.environment
        if directory is not None:
            if unfit != _FIT:
                aside = directory.set_aside(unfit.reason, environment, is_last_copy=unfit.has_lost)
            environment.crash("set-aside")
            directory.finish()
            directory.note_boot(environment.boot_id())
            made = _database(self._setup, self._wanted.values)
        position = self._wanted.place.position
        return made, OpenReport(position=position, rows_read=rows, set_aside=aside, reason=unfit.reason)

    # ---- the base

    def _take_base(self, first_position: int, manifest: Manifest | None = None) -> bool:
        """Hold a base for a store with the changes from a position on: this snapshot, or the newest eligible one, if
        any. Return whether it is held.
        """
        writer = self._wanted.writer
        assert writer is not None
        eligibility = Eligibility(
            first_position=first_position,
            position=self._wanted.place.position,
            losses=self._wanted.place.losses,
            writer=writer.name,
            epoch=writer.grant.epoch,
            partitions=tuple(writer.grant.partitions),
        )
        access = SnapshotAccess(
            self._setup.log, self._recovery, self._setup.environment, self._setup.settings.cache_bytes // 2
        )
        moves = self._setup.settings.loading is Loading.ON_DEMAND
        self._base = BaseSnapshot(access, eligibility, lambda: writer.grant.epoch, moves=moves)
        is_held = self._base.claim(manifest)
        if not is_held:
            self._release_base()
        return is_held

    def _release_base(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.release()

    def _load(self, state: State) -> int:
        """Load the missing part, or begin to. Return the number of rows read."""
        if self._base is None or self._setup.settings.loading is Loading.ON_DEMAND:
            return 0
        if self._setup.settings.loading is Loading.FIRST:
            return state.load_missing(self._setup.environment)
        state.start_loading(self._setup.environment)
        return 0


def _database(
    setup: TableSetup, values: ValueRule, path: Path | None = None, missing: Missing | None = None
) -> "RocksdbStore":
    """Open the database of a setup with a directory, or the one at `path`, without the `missing` part."""
    from statelog.tables.state.rocksdb import RocksdbStore

    assert setup.directory is not None
    return RocksdbStore(setup.directory, setup.keys, values, setup.settings, path, missing)


def _examined(
    setup: TableSetup, directory: StateDirectory, values: ValueRule, *, may_lack: bool
) -> "tuple[RocksdbStore | None, Unfit, StatePlace | None]":
    """Open the existing database, or return why it cannot be used; and its place, if it has one."""
    if directory.damage:
        return None, Unfit(f"it was found damaged: {directory.damage}"), None
    wanted, place = table_record(setup.log.descriptor, values.schema, setup.keys.owned), None
    with ExitStack() as undo:
        try:
            store = _database(setup, values)
            undo.callback(store.close)
            unfit = Unfit(difference(store.record, wanted))
            if is_of_log(store.record, wanted):  # With another share or schema it still proves a loss.
                place = store.place
                unfit = _LOST if _is_lost(setup.log, directory, place) else unfit
            elif setup.log.descriptor.made_with is not None and not is_of_topics(store.record, wanted):
                unfit = _OTHER_TOPICS
        except Corrupt as error:
            return None, Unfit(error.message), place
        if unfit == _FIT and store.missing and not may_lack:
            unfit = Unfit("a part of its state is in a snapshot only")
        if unfit != _FIT:
            return None, unfit, place
        undo.pop_all()
    return store, _FIT, place


def _is_lost(log: Log, directory: StateDirectory, place: StatePlace) -> bool:
    """Return whether the ledger lost a place, and a person has accepted that.

    Raises BeyondEnd or AnchorMismatch if nobody has accepted it, BrokerUnavailable if Kafka's answer is old.
    """
    end = log.ledger.end(at_least=place.position)
    facts: dict[str, Any] = {
        "path": str(directory.database),
        "position": place.position,
        "ledger_position": end,
        "hint": "The ledger lost acknowledged commits, and the directory has them. Restore the topic; or move the "
        "directory away, to go on without them",
    }
    if place.position > end:
        raise BeyondEnd("the local state is ahead of the ledger", **facts)
    last, found = place.ledger.last, place_at(log, place.position).last
    if last is None or found in (None, last):
        return False
    if log.history.read().state.restarted >= last.offset:
        return True
    raise AnchorMismatch("the local state was built on another record than the ledger has", **facts)
