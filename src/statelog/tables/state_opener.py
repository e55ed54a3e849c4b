"""`StateOpener`: the one way to open a state: what is kept (`KeptState`) is brought up to date, or it is made anew
beside it: a whole one by a recovery, or an empty store that stands on the newest snapshot. Each step, with "if we die
here": docs/protocol-table.md, 5 to 9 and R1 to R5.

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
    planned_anew,
    warn_if_aged,
)
from statelog.recovery import AtPosition, Plan, Recovery, newest_changes, plan_changes
from statelog.recovery.settings import terms_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """What is there: a `store` that can be used, or why there is none. `place` is how far the database is, if it says
    so. `in_use`: it is read until another one is made; called with the place of that, it closes it, and says why.
    """

    store: "RocksdbStore | None" = None
    unfit: Unfit = _FIT
    place: StatePlace | None = None
    values: ValueRule | None = None
    may_lack: bool = False
    in_use: Callable[[StatePlace], Unfit] | None = None

    @classmethod
    def found(cls, setup: TableSetup, values: ValueRule, *, may_lack: bool = False) -> "KeptState":
        """Open the database that is there, and compare its place with the ledger; the directory closes what is open.

        `values`: those that the state has to have. `may_lack`: a part of the state may be in a snapshot only. Raises
        BeyondEnd or AnchorMismatch if it proves a loss that nobody has accepted, StorageFull, Damaged, Unavailable.
        """
        store, unfit, place = None, _FIT, None
        if setup.directory is not None:
            setup.directory.drop_unsynced(setup.environment.boot_id())
            if is_there(setup.directory.database):
                store, unfit, place = _judged(setup, setup.directory, values, may_lack=may_lack)
        return cls(store=store, unfit=unfit, place=place, values=values, may_lack=may_lack)

    def with_values(self, setup: TableSetup, values: ValueRule) -> "KeptState":
        """The same for these values, found again if they are of another schema. Raises as `found`."""
        if self.values is None or self.values.schema == values.schema:
            return self
        if self.store is not None:
            self.store.close()
        return KeptState.found(setup, values, may_lack=self.may_lack)

    def replaced(self, unfit: Unfit, place: StatePlace) -> Unfit:
        """Why it is replaced by a state that was made at this place; closes what is in use."""
        if self.in_use is not None:
            return self.in_use(place)
        has_lost = self.place is not None and self.place.may_have_lost(place)
        return unfit._replace(has_lost=unfit.has_lost or has_lost)


class StateOpener:
    """Opens the state of a table that is wanted, in its directory or in a dict, once. `beat` is often called."""

    def __init__(self, setup: TableSetup, wanted: Wanted, *, beat: Callable[[], None] = lambda: None) -> None:
        self._setup, self._wanted, self._beat = setup, wanted, beat
        self._recovery = replace(setup.settings.recovery, value_schema_id=wanted.values.schema.id)
        self._base: BaseSnapshot | None = None

    def open(self, kept: KeptState) -> tuple[State, OpenReport]:
        """The state, of what was kept or made beside it, and how it was opened.

        Raises BeyondEnd or AnchorMismatch for a proof of loss; Fenced, Damaged, NotFound, StorageFull, Unavailable.
        """
        kept = kept.with_values(self._setup, self._wanted.values)
        with ExitStack() as undo:
            undo.callback(self._let_go)
            found = self._brought(kept)
            if isinstance(found, Unfit):
                made, rows = self._make()
                found = self._placed(made, rows, kept.replaced(found, self._wanted.place))
            store, report = found
            state = State(store, self._setup.keys, self._wanted.values, self._base)
            undo.callback(state.close)
            loaded = self._load(state)
            undo.pop_all()
        return state, replace(report, rows_read=report.rows_read + loaded)

    # ---- what is kept

    def _brought(self, kept: KeptState) -> tuple[Store, OpenReport] | Unfit:
        """What was kept, brought to the place, and a snapshot with what it lacks; or why there is none."""
        store, wanted = kept.store, self._wanted.place
        if store is None:
            return kept.unfit
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
            if store.missing and not self._stands(store.first_position):
                return Unfit("what it lacks is in no snapshot any more")
            undo.pop_all()
        return store, OpenReport(position=wanted.position, from_position=place.position, rows_read=rows)

    def _read_behind(self, store: Store, start: int, folding: Folding | None) -> int:
        """Load what was committed behind a position, and return how many rows. Raises OffsetGone, NotFound if the log
        holds it no more.
        """
        rows, plan = 0, self._changes_since(start, folding)
        self._wanted.check_final(plan.state)
        if not plan.is_empty:
            newest = self._setup.environment.run(newest_changes, self._setup.log, plan, settings=self._recovery)
            with closing(newest) as tables:
                for table in tables:
                    store.load(table)
                    rows += table.num_rows
                    self._beat()
        return rows

    def _changes_since(self, start: int, folding: Folding | None) -> Plan:
        """The plan of what was committed behind a position; of what the Open has folded, if that holds it all."""
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

    # ---- what is made

    def _make(self) -> tuple[Store, int]:
        """Make the state, and return it, closed if it is on a disk, and how many rows were read."""
        is_first = self._wanted.writer is None or self._setup.settings.loading is Loading.FIRST
        foldings = chain([self._wanted.folding], repeat(None))  # The next try asks for the newest snapshot.
        partial = None if is_first else planned_anew(lambda: self._partial(next(foldings)))
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
        """A store that misses what the newest snapshot has, with what was committed behind that, and how many rows that
        was; None if there is no snapshot. Raises OffsetGone, NotFound if the log moved on.
        """
        log, keys, directory = self._setup.log, self._setup.keys, self._setup.directory
        manifest = log.manifests.newest() if folding is None else folding.base
        if manifest is None or not make_plan(log.descriptor, manifest, manifest, (), keys.owned).runs:
            return None
        with ExitStack() as undo:
            undo.callback(self._let_go)
            missing = Missing(manifest.position, frozenset(keys.groups))
            if directory is None:
                store: Store = DictStore(keys, self._wanted.values, {}, missing)
            else:
                directory.begin()
                store = _database(self._setup, self._wanted.values, directory.unfinished, missing)
            undo.callback(store.close)
            if not self._stands(manifest.position, manifest):
                raise OffsetGone("the snapshot was cleaned up while a table was opened", log=log.name)
            rows = self._read_behind(store, manifest.position, folding)
            self._setup.environment.crash("tail-folded")
            undo.pop_all()
        return store, rows

    def _whole(self) -> tuple[Store, int]:
        values, directory = self._wanted.values, self._setup.directory
        with self._wanted.recovery or Recovery(self._planned(), self._recovery, lambda _: self._beat()) as recovery:
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
        """The state at the place or above: at the Open, of what that has folded."""
        folding, settings, groups = self._wanted.folding, self._recovery, self._setup.keys.owned
        plan = None if folding is None else plan_of(self._setup.log, folding, groups)
        seen, attempts = [self._wanted.place.ledger], settings.attempts
        return self._setup.environment.run(
            HeldPlan, self._setup.log, terms_of(settings), None, groups, seen=seen, attempts=attempts, plan=plan
        )

    def _placed(self, made: Store, rows: int, unfit: Unfit) -> tuple[Store, OpenReport]:
        """What was made, in its place; the one that is there is set aside, loudly, and the reason says why."""
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

    # ---- what a snapshot has

    def _stands(self, first_position: int, manifest: Manifest | None = None) -> bool:
        """Whether a store with the changes from a position on has a base: this snapshot, or the newest that will do."""
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
            self._setup.log, self._recovery, self._setup.environment, self._setup.settings.remote_cache_bytes
        )
        moves = self._setup.settings.loading is Loading.ON_DEMAND
        self._base = BaseSnapshot(access, eligibility, lambda: writer.grant.epoch, moves=moves)
        is_there = self._base.claim(manifest)
        if not is_there:
            self._let_go()
        return is_there

    def _let_go(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.release()

    def _load(self, state: State) -> int:
        """Load what is missing, or begin to; how many rows were read."""
        if self._base is None or self._setup.settings.loading is Loading.ON_DEMAND:
            return 0
        if self._setup.settings.loading is Loading.FIRST:
            return state.load_missing(self._setup.environment)
        state.start_loading(self._setup.environment)
        return 0


def _database(
    setup: TableSetup, values: ValueRule, path: Path | None = None, missing: Missing | None = None
) -> "RocksdbStore":
    """The database of a setup with a directory, or the one at this path that lacks what is `missing`."""
    from statelog.tables.state.rocksdb import RocksdbStore

    assert setup.directory is not None
    return RocksdbStore(setup.directory, setup.keys, values, setup.settings, path, missing)


def _judged(
    setup: TableSetup, directory: StateDirectory, values: ValueRule, *, may_lack: bool
) -> "tuple[RocksdbStore | None, Unfit, StatePlace | None]":
    """The database that is there, or why it cannot be used; and its place, if it says so."""
    if directory.damage:
        return None, Unfit(f"it was found damaged: {directory.damage}"), None
    wanted, place = table_record(setup.log.descriptor, values.schema, setup.keys.owned), None
    with ExitStack() as undo:
        try:
            store = _database(setup, values)
            undo.callback(store.close)
            unfit = Unfit(difference(store.record, wanted))
            if is_of_log(store.record, wanted):  # Of another share or schema it proves a loss all the same.
                place = store.place
                unfit = _LOST if _is_lost(setup.log, directory, place) else unfit
            elif setup.log.descriptor.made_with is not None and not is_of_topics(store.record, wanted):
                unfit = _GONE
        except Corrupt as error:
            return None, Unfit(error.message), place
        if unfit == _FIT and store.missing and not may_lack:
            unfit = Unfit("a part of its state is in a snapshot only")
        if unfit != _FIT:
            return None, unfit, place
        undo.pop_all()
    return store, _FIT, place


def _is_lost(log: Log, directory: StateDirectory, place: StatePlace) -> bool:
    """Whether a place is none of the ledger's any more, as a person has accepted.

    Raises BeyondEnd or AnchorMismatch if nobody has, BrokerUnavailable for an old answer of Kafka's.
    """
    end = log.ledger.end(at_least=place.position)
    facts: dict[str, Any] = {
        "path": str(directory.database),
        "position": place.position,
        "ledger_position": end,
        "hint": "The ledger lost commits that were acknowledged, and the directory has them: restore the topic, or "
        "move the directory away, and go on without them",
    }
    if place.position > end:
        raise BeyondEnd("the local state is ahead of the ledger", **facts)
    last, found = place.ledger.last, place_at(log, place.position).last
    if last is None or found in (None, last):
        return False
    if log.history.read().state.restarted >= last.offset:
        return True
    raise AnchorMismatch("the local state was built on another record than the ledger has", **facts)
