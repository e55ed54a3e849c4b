"""`StateOpener`: the one way to open a state: what is kept is judged and brought up to date, or it is made anew beside
it: a whole one by a recovery, or an empty store that stands on the newest snapshot. Each step, with "if we die here":
docs/protocol-table.md, 5 to 9 and R1 to R5.

Invariants:
- A database is used only if its place is part of the history below the place that it has to come to. An owner looks
  before its Open, which would stand where the lost records did.
- A database that proves a loss is the only copy of what was lost: it is left untouched, and reported, until a person
  has accepted the loss, and is never deleted then.
- A database that is made is renamed to its place once all that was committed behind its snapshot is in it.
- A base is held from before its commits are read until the state has it.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statelog.errors import AnchorMismatch, BeyondEnd, BrokerUnavailable, Corrupt, Fenced, NotFound, OffsetGone
from statelog.producer import Writer
from statelog.reading import (
    Folding,
    HeldPlan,
    make_change_plan,
    make_plan,
    place_at,
    plan_of,
    planned_anew,
    warn_if_aged,
)
from statelog.recovery import AtPosition, Plan, Recovery, newest_changes, plan_changes
from statelog.recovery.settings import terms_of
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.tables.setup import Loading, TableSetup
from statelog.tables.state.base import BaseSnapshot, Eligibility
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.snapshot import SnapshotAccess
from statelog.tables.state.state import State
from statelog.tables.state.store import (
    DictStore,
    Missing,
    StatePlace,
    Store,
    difference,
    is_of_log,
    is_of_topics,
    table_record,
)
from statelog.tables.state.values import ValueRule

if TYPE_CHECKING:
    from statelog.tables.state.rocksdb import RocksdbStore


class Unfit(NamedTuple):
    """Why a database cannot be used, and whether it may have what a person has given up: then nothing deletes it."""

    reason: str
    has_lost: bool = False


_LOST = Unfit("the ledger lost what it was built on, which a person has accepted", has_lost=True)
_GONE = Unfit("it is of topics that are gone, which a person has accepted", has_lost=True)
_OTHER_LOSSES = Unfit("a loss was accepted since, and what was lost may be in it", has_lost=True)
_FIT = Unfit("")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """How a table was opened.

    `position` is that of the state, at or above the owner's Open. `from_position` is where the local directory was, and
    only what was committed behind it was read; None if the state was made again. `rows_read` counts the rows that were
    read before the table opened: of the whole state, or of what was committed behind the directory or the snapshot.
    `set_aside` is where a directory that could not be used is now, and `reason` says why.
    """

    position: int
    from_position: int | None = None
    rows_read: int = 0
    set_aside: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The state that is wanted: its place, its values, and what says so: an owner whose Open stands, or for who owns
    nothing a recovery of that place. `folding` is what the Open has read of the ledger: nothing is folded again.
    """

    place: StatePlace
    values: ValueRule
    writer: Writer | None = None
    recovery: Recovery | None = None
    folding: Folding | None = None

    @classmethod
    def by(cls, writer: Writer, folding: Folding | None = None) -> "Wanted":
        """An owner's: since its Open nothing can have changed its key groups, so that is its place, too."""
        return cls(
            place=StatePlace.of(writer), values=ValueRule(writer.grant.value_schema), writer=writer, folding=folding
        )

    def check_final(self, read: LedgerState) -> None:
        """Raise Fenced if what was read, up to there, is not the state at the owner's Open: another one came behind."""
        grant = None if self.writer is None else self.writer.grant
        if grant is not None and read.is_overtaken(grant.epoch, grant.partitions):
            raise Fenced(
                "another owner took over while the state was read",
                **grant.facts,
                epoch=grant.epoch,
                hint="Open the table again if this process should have it",
            )


class StateOpener:
    """Opens the state of a table, in its directory or in a dict. What a database there `may_lack` of its state an owner
    reads from a snapshot. `beat` is often called.
    """

    def __init__(self, setup: TableSetup, *, may_lack: bool = False, beat: Callable[[], None] = lambda: None) -> None:
        self._log, self._keys = setup.log, setup.keys
        self._directory = setup.directory
        self._settings, self._environment = setup.settings, setup.environment
        self._may_lack = may_lack
        self._beat = beat
        self._values: ValueRule | None = None
        self._kept: RocksdbStore | None = None
        self._unfit = _FIT
        self._was: StatePlace | None = None
        """How far the database that is there is, if it says so."""
        self._base: BaseSnapshot | None = None
        self._made: Store | None = None
        self._made_rows = 0

    def look(self, values: ValueRule) -> None:
        """Open the database that is there, and compare its place with the ledger; the directory closes what is open.

        `values` are those that the state has to have. Raises BeyondEnd or AnchorMismatch if it proves a loss that
        nobody has accepted, StorageFull, Damaged, Unavailable.
        """
        self._read_as(values)
        if self._directory is not None:
            self._directory.settle(self._environment.boot_id())
            if self._directory.database.exists():
                self._kept, self._unfit = self._judged(self._directory)

    def open(self, wanted: Wanted) -> tuple[State, OpenReport]:
        """The state that is wanted, of what was looked at, and how it was opened.

        Raises BeyondEnd or AnchorMismatch for a proof of loss; Fenced, Damaged, NotFound, StorageFull, Unavailable.
        """
        self._want(wanted)
        if self._values is None or wanted.values.schema != self._values.schema:
            if self._kept is not None:
                self._kept.close()
                self._kept = None
            self.look(wanted.values)
        with ExitStack() as undo:
            undo.callback(self._let_go)
            found = self._brought()
            if isinstance(found, Unfit):
                self._make()
                has_lost = self._was is not None and self._was.may_have_lost(self._place)
                found = self._replaced(found._replace(has_lost=found.has_lost or has_lost))
            store, report = found
            state = State(store, self._keys, wanted.values, self._base)
            undo.callback(state.close)
            loaded = self._load(state)
            undo.pop_all()
        return state, replace(report, rows_read=report.rows_read + loaded)

    def make(self, wanted: Wanted) -> None:
        """Make the state that is wanted, beside one that is in use.

        Raises NotFound, Damaged, StorageFull, Unavailable.
        """
        self._want(wanted)
        self._read_as(wanted.values)
        self._make()

    def replace(self, unfit: Unfit) -> tuple[State, OpenReport]:
        """What `make` has made, in place of the one that was in use until now, and is closed."""
        store, report = self._replaced(unfit)
        return State(store, self._keys, self._wanted.values), report

    # ---- what is wanted

    def _want(self, wanted: Wanted) -> None:
        self._wanted, self._place, self._folding = wanted, wanted.place, wanted.folding

    def _read_as(self, values: ValueRule) -> None:
        self._values = values
        self._recovery = replace(self._settings.recovery, value_schema_id=values.schema.id)
        self._record = table_record(self._log.descriptor, values.schema, self._keys.owned)

    # ---- what is kept

    def _judged(self, directory: StateDirectory) -> "tuple[RocksdbStore | None, Unfit]":
        """The database that is there, or why it cannot be used."""
        if directory.damage:
            return None, Unfit(f"it was found damaged: {directory.damage}")
        with ExitStack() as undo:
            try:
                store = self._database(directory)
                undo.callback(store.close)
                unfit = Unfit(difference(store.record, self._record))
                if is_of_log(store.record, self._record):  # Of another share or schema it proves a loss all the same.
                    self._was = store.place
                    unfit = _LOST if self._is_lost(directory, self._was) else unfit
                elif self._log.descriptor.made_with is not None and not is_of_topics(store.record, self._record):
                    unfit = _GONE
            except Corrupt as error:
                return None, Unfit(error.message)
            if unfit == _FIT and store.missing and not self._may_lack:
                unfit = Unfit("a part of its state is in a snapshot only")
            if unfit != _FIT:
                return None, unfit
            undo.pop_all()
        return store, _FIT

    def _is_lost(self, directory: StateDirectory, place: StatePlace) -> bool:
        """Whether a place is none of the ledger's any more, as a person has accepted.

        Raises BeyondEnd or AnchorMismatch if nobody has, BrokerUnavailable for an old answer of Kafka's.
        """
        ledger = self._log.ledger
        end = ledger.end(at_least=place.position)
        facts: dict[str, Any] = {
            "path": str(directory.database),
            "position": place.position,
            "ledger_position": end,
            "hint": "The ledger lost commits that were acknowledged, and the directory has them: restore the topic, or "
            "move the directory away, and go on without them",
        }
        if place.position > end:
            raise BeyondEnd("the local state is ahead of the ledger", **facts)
        last, found = place.ledger.last, place_at(self._log, place.position).last
        if last is None or found in (None, last):
            return False
        with closing(ledger.newest_client()) as client:
            client.fold_end()
            if client.fold.restarted >= last.offset:
                return True
        raise AnchorMismatch("the local state was built on another record than the ledger has", **facts)

    def _brought(self) -> tuple[Store, OpenReport] | Unfit:
        """What was kept, brought to the place, and a snapshot with what it lacks; or why there is none."""
        store, self._kept = self._kept, None
        if store is None:
            return self._unfit
        with ExitStack() as undo:
            undo.callback(store.close)
            place = store.place
            if place.position > self._place.position:
                raise BrokerUnavailable("Kafka gave an old end of the ledger", position=self._place.position)
            if place.may_have_lost(self._place):
                return _OTHER_LOSSES
            try:
                rows = self._read_behind(store, place.position, self._folding)
            except (NotFound, OffsetGone):
                return Unfit("the log was truncated past it")
            self._environment.crash("caught-up")
            store.move(self._place)
            if store.missing and not self._stands(store.first_position):
                return Unfit("what it lacks is in no snapshot any more")
            undo.pop_all()
        return store, OpenReport(position=self._place.position, from_position=place.position, rows_read=rows)

    def _read_behind(self, store: Store, start: int, folding: Folding | None) -> int:
        """Load what was committed behind a position, and return how many rows. Raises OffsetGone, NotFound if the log
        holds it no more.
        """
        rows, plan = 0, self._changes_since(start, folding)
        self._wanted.check_final(plan.state)
        if not plan.is_empty:
            newest = self._environment.run(newest_changes, self._log, plan, settings=self._recovery)
            with closing(newest) as tables:
                for table in tables:
                    store.load(table)
                    rows += table.num_rows
                    self._beat()
        return rows

    def _changes_since(self, start: int, folding: Folding | None) -> Plan:
        """The plan of what was committed behind a position; of what the Open has folded, if that holds it all."""
        groups, schema_id = self._keys.owned, self._wanted.values.schema.id
        if folding is not None and folding.start <= start:
            self._environment.run(warn_if_aged, self._log, folding)
            return make_change_plan(
                self._log.descriptor,
                [commit for commit in folding.commits if commit.position > start],
                folding.folded,
                start_position=start,
                value_schema_id=schema_id,
                key_groups=groups,
                accepted=folding.folded.state.accepted,
            )
        return plan_changes(
            self._log,
            AtPosition(start),
            None if self._wanted.writer is not None else AtPosition(self._place.position),
            key_groups=groups,
            value_schema_id=schema_id,
            seen=[self._place.ledger],
        )

    # ---- what is made

    def _make(self) -> None:
        is_first = self._wanted.writer is None or self._settings.loading is Loading.FIRST
        partial = None if is_first else planned_anew(self._partial)
        store = self._made = self._whole() if partial is None else partial
        try:
            store.adopt(self._record, self._place)
        finally:
            store.close()

    def _partial(self) -> "Store | None":
        """A store that misses what the newest snapshot has, with what was committed behind that; None if there is none.
        Raises OffsetGone, NotFound if the log moved on.
        """
        log = self._log
        folding, self._folding = self._folding, None  # The next try asks for the newest snapshot.
        manifest = log.manifests.newest() if folding is None else folding.base
        if manifest is None or not make_plan(log.descriptor, manifest, manifest, (), self._keys.owned).runs:
            return None
        with ExitStack() as undo:
            undo.callback(self._let_go)
            missing = Missing(manifest.position, frozenset(self._keys.groups))
            if self._directory is None:
                store: Store = DictStore(self._keys, self._wanted.values, {}, missing)
            else:
                self._directory.begin()
                store = self._database(self._directory, self._directory.unfinished, missing)
            undo.callback(store.close)
            if not self._stands(manifest.position, manifest):
                raise OffsetGone("the snapshot was cleaned up while a table was opened", log=log.name)
            self._made_rows = self._read_behind(store, manifest.position, folding)
            self._environment.crash("tail-folded")
            undo.pop_all()
        return store

    def _whole(self) -> Store:
        with self._wanted.recovery or Recovery(self._planned(), self._recovery, lambda _: self._beat()) as recovery:
            if self._directory is None:
                store = DictStore.recovered(recovery, self._keys, self._wanted.values)
                self._made_rows = len(store)
                self._wanted.check_final(recovery.plan.state)
                return store
            self._directory.begin()
            self._made_rows = recovery.to_rocksdb(self._directory.unfinished)
            self._wanted.check_final(recovery.plan.state)
        self._environment.crash("recovered")
        return self._database(self._directory, self._directory.unfinished)

    def _planned(self) -> HeldPlan:
        """The state at the place or above: at the Open, of what that has folded."""
        folding, settings, groups = self._wanted.folding, self._recovery, self._keys.owned
        plan = None if folding is None else plan_of(self._log, folding, groups)
        seen, attempts = [self._place.ledger], settings.attempts
        return self._environment.run(
            HeldPlan, self._log, terms_of(settings), None, groups, seen=seen, attempts=attempts, plan=plan
        )

    def _replaced(self, unfit: Unfit) -> tuple[Store, OpenReport]:
        """What was made, in its place; the one that is there is set aside, loudly, and the reason says why."""
        aside, directory = None, self._directory
        if directory is None:
            store = self._made
            assert store is not None
        else:
            if unfit != _FIT:
                aside = directory.set_aside(unfit.reason, self._environment, is_last_copy=unfit.has_lost)
            self._environment.crash("set-aside")
            directory.finish()
            directory.note_boot(self._environment.boot_id())
            store = self._database(directory)
        position, rows = self._place.position, self._made_rows
        return store, OpenReport(position=position, rows_read=rows, set_aside=aside, reason=unfit.reason)

    def _database(
        self, directory: StateDirectory, path: Path | None = None, missing: Missing | None = None
    ) -> "RocksdbStore":
        from statelog.tables.state.rocksdb import RocksdbStore

        assert self._values is not None
        return RocksdbStore(directory, self._keys, self._values, self._settings, path, missing)

    # ---- what a snapshot has

    def _stands(self, first_position: int, manifest: Manifest | None = None) -> bool:
        """Whether a store with the changes from a position on has a base: this snapshot, or the newest that will do."""
        writer = self._wanted.writer
        assert writer is not None
        eligibility = Eligibility(
            first_position=first_position,
            position=self._place.position,
            losses=self._place.losses,
            writer=writer.name,
            epoch=writer.grant.epoch,
            partitions=tuple(writer.grant.partitions),
        )
        access = SnapshotAccess(self._log, self._recovery, self._environment, self._settings.remote_cache_bytes)
        self._base = BaseSnapshot(access, eligibility, lambda: writer.grant.epoch)
        is_there = self._base.claim(manifest)
        if not is_there:
            self._let_go()
        return is_there

    def _let_go(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.let_go()

    def _load(self, state: State) -> int:
        """Load what is missing, or begin to; how many rows were read."""
        if self._base is None or self._settings.loading is Loading.ON_DEMAND:
            return 0
        if self._settings.loading is Loading.FIRST:
            return state.load_missing(self._environment)
        state.start_loading(self._environment)
        return 0
