"""Tables that open on a snapshot read from its runs, load in the background, and bear removed or damaged runs."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from statelog.environment import Environment, inline
from statelog.errors import CorruptRun, Fenced
from statelog.log import Log
from statelog.reading import Snapshots
from statelog.reading.claims import list_leases
from statelog.recovery import RecoverySettings
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.store.run_writer import RunWriter
from statelog.tables import Loading, Table, TableSettings
from statelog.tables.state.base import Eligibility
from statelog.tables.state.rocksdb import RocksdbStore
from statelog.tables.state.store import DictStore
from statelog.testing.cluster import MemoryCluster
from tests.support.faults.unanswered import Unanswered
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.samples.folds import apply_all, put_all
from tests.support.told import told
from tests.support.waiting import wait_for

KEYS = [b"k%03d" % i for i in range(60)]
TTL_S = 30.0


class Rolled:
    """A log of three runs with row groups of three rows, and a tail. Keys were put, deleted and put again in turns."""

    def __init__(self, rig: TwinRig, scratch: Path) -> None:
        self.rig, self.scratch = rig, scratch
        self.now_s = 0.0
        self.plain = TableRig(rig, None)
        self.model: dict[bytes, bytes] = {}
        for stretch in range(4):
            self.write({key: self.value(i, stretch) for i, key in enumerate(KEYS) if i % 4 >= stretch})
            if stretch < 3:
                self.roll_up()

    @staticmethod
    def value(i: int, stretch: int) -> bytes | None:
        """Return the value of a key in a stretch of the history."""
        return None if (i + stretch) % 3 == 0 else b"%d-%d" % (i, stretch)

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Commit as the owner, in another incarnation."""
        with self.plain.open() as table:
            self.put(table, changes)
            table.commit()

    def put(self, table: Table[Any, Any], changes: dict[bytes, bytes | None]) -> None:
        """Put changes to a table and to the model."""
        put_all(table, changes.items())
        apply_all(self.model, changes.items())

    def roll_up(self) -> None:
        """Make one more snapshot. Only the last two remain."""
        self.plain.roll_up(self.scratch)

    def open(self, loading: Loading, directory: Path | None = None, **options: Any) -> Table[Any, Any]:
        """Open the table on the snapshot."""
        settings = TableSettings(
            loading=loading, recovery=RecoverySettings(holder="table", lease_ttl_s=TTL_S), cache_bytes=1 << 15
        )
        environment = options.pop("environment", None) or Environment(clock=lambda: self.now_s)
        return TableRig(self.rig, directory).open(settings=settings, environment=environment, **options)

    def check(self, table: Table[Any, Any]) -> None:
        """Check that every way of reading shows the model."""
        assert content(table) == self.model
        assert {key: table.get(key) for key in KEYS} == {key: self.model.get(key) for key in KEYS}
        assert len(table) == len(self.model)
        ordered = sorted(self.model.items())
        assert list(table.range()) == ordered
        assert list(table.range(b"k03", b"k05")) == [one for one in ordered if b"k03" <= one[0] < b"k05"]
        assert list(table.range(reverse=True)) == ordered[::-1]
        assert list(table.range(b"k03", b"k05", reverse=True)) == list(table.range(b"k03", b"k05"))[::-1]
        some = dict(table.items(key_groups=[3, 5]))
        assert some == {key: value for key, value in ordered if key_group_of(key, "bytes", 16) in (3, 5)}


@pytest.fixture
def rolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rolled:
    """Return the log of these tests."""
    monkeypatch.setitem(cast("dict[str, Any]", RunWriter.__init__.__kwdefaults__), "target_rows", 3)
    return Rolled(twin_rig("log"), tmp_path)


@pytest.fixture(params=["dict", "rocksdb"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the directory of the state, or None for a dict."""
    return tmp_path / "local" if request.param == "rocksdb" else None


@pytest.fixture(params=["dict", pytest.param("rocksdb", marks=pytest.mark.soak)])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the directory as `directory` does, for tests that hardly depend on it."""
    return tmp_path / "local" if request.param == "rocksdb" else None


class Gate:
    """A gate that lets the loading thread pass a key group at a time."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self.is_open = False

    def crash(self, point: str) -> None:
        """Wait at the crash point of an environment."""
        if point == "group-loaded" and not self.is_open:
            assert self._steps.acquire(timeout=30)

    def step(self) -> None:
        """Let one more key group pass."""
        self._steps.release()

    def open(self) -> None:
        """Let all of them pass."""
        self.is_open = True
        self._steps.release(1_000)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return a gate that is opened at the end, so that no thread is left."""
    made = Gate()
    yield made
    made.open()


def test_on_demand_shows_all_and_loads_nothing(rolled: Rolled, directory: Path | None) -> None:
    """A table on demand reads by key, by range, whole and counted, and loads nothing. Its changes survive a restart."""
    with rolled.open(Loading.ON_DEMAND, directory) as table:
        rolled.check(table)
        rolled.put(table, {KEYS[1]: b"new", KEYS[2]: None, b"other": b"x", KEYS[5]: None})
        rolled.check(table)
        table.commit({"n": 1})
        rolled.check(table)
        rolled.put(table, {KEYS[5]: b"back", KEYS[1]: None})
        table.commit({"n": 2})
        rolled.check(table)
        assert not table.is_local
    for loading in (Loading.ON_DEMAND, Loading.FIRST):
        with rolled.open(loading, directory) as table:
            assert table.progress == {"n": 2}
            rolled.check(table)
            assert table.is_local is (loading is Loading.FIRST)
            assert table.opening.set_aside is None


def test_behind_loads_all_and_overwrites_nothing(rolled: Rolled, directory: Path | None, gate: Gate) -> None:
    """Loading behind the loop overwrites no change. In the end all is local without a lease, even in an idle loop."""
    environment = Environment(clock=lambda: rolled.now_s, crash=gate.crash)
    with rolled.open(Loading.BEHIND, directory, environment=environment) as table:
        for turn in range(8):
            rolled.put(table, {key: None if i % 2 else b"%d" % turn for i, key in enumerate(KEYS[turn::8])})
            table.commit({"turn": turn})
            rolled.check(table)
            gate.step()
        assert not table.is_local
        scan = iter(table.items())
        next(scan)
        gate.open()
        assert dict(scan).keys() <= rolled.model.keys()
        wait_for(lambda: table.is_local)
        rolled.check(table)
        with rolled.rig.open() as log:
            wait_for(lambda: not list_leases(log.store))
        rolled.put(table, {KEYS[0]: b"after"})
        table.commit({"turn": 9})
    with rolled.open(Loading.BEHIND, directory) as table:
        assert table.progress == {"turn": 9}
        assert directory is None or table.is_local
        rolled.check(table)


def test_a_log_without_a_snapshot_opens_as_every_other(directory: Path | None, tmp_path: Path) -> None:
    """A log without a snapshot is local at once."""
    tables = TableRig(twin_rig("log"), directory, Loading.ON_DEMAND)
    with tables.open() as table:
        table[b"k"] = b"v"
        table.commit()
    with tables.open() as table:
        assert table.is_local
        assert content(table) == {b"k": b"v"}
    assert tmp_path.exists()


def test_the_base_moves_on(rolled: Rolled, either: Path | None) -> None:
    """The base and its lease move to the newest snapshot, while the table is used now and then."""
    with rolled.open(Loading.ON_DEMAND, either) as table, rolled.rig.open() as log:
        first = list_leases(log.store)
        assert len(first) == 1
        for turn in range(4):
            rolled.put(table, dict.fromkeys(KEYS[turn::9], b"turn-%d" % turn))
            table.commit()
            rolled.roll_up()
            for _ in range(3):
                rolled.now_s += TTL_S / 2
                table.get(KEYS[4])
                wait_for(lambda: list_leases(log.store) != first)
            rolled.check(table)
        wait_for(lambda: len(list_leases(log.store)) == 1)
        newest = log.manifests.numbers()[-1]
        (lease,) = list_leases(log.store)
        assert lease.lease.manifest_number >= newest - 1 > first[0].lease.manifest_number
        assert not lease.lease.next_offsets, "the lease holds no part of the topics"
        assert not table.is_local
    assert not list_leases(rolled.rig.open().store)


def test_runs_that_went_while_the_table_idled(rolled: Rolled, either: Path | None) -> None:
    """A table whose lease expired while it idled continues from another snapshot after its runs were removed."""
    with rolled.open(Loading.ON_DEMAND, either) as table:
        base = _runs(rolled)
        for turn in range(4):
            rolled.put(table, dict.fromkeys(KEYS[turn::9], b"mine-%d" % turn))
            table.commit()
            _roll_up_unheld(rolled)
        assert not base & _runs(rolled), "all runs of the base are removed"
        rolled.check(table)
        rolled.put(table, {KEYS[0]: b"last"})
        table.commit()
        rolled.check(table)


def test_a_newer_owner_and_then_no_snapshot(rolled: Rolled, either: Path | None) -> None:
    """A former owner whose runs are removed is Fenced: it never misses a key or reads the new owner's value."""
    table = rolled.open(Loading.ON_DEMAND, either)
    base = _runs(rolled)
    for turn in range(4):
        rolled.write(dict.fromkeys(KEYS, b"theirs-%d" % turn))
        _roll_up_unheld(rolled)
    assert not base & _runs(rolled)
    uses: list[Callable[[], object]] = [lambda: content(table), lambda: len(table), lambda: table.get(KEYS[4])]
    for use in uses:
        with pytest.raises(Fenced):
            use()
    with pytest.raises(Fenced):
        table.commit()
    table.close()


def _halved(faults: Unanswered, tmp_path: Path) -> TableRig:
    """Return a log whose first half of partitions holds a 1 for each key, in a snapshot."""
    tables = TableRig(twin_rig("log", cluster=MemoryCluster(faults=faults)), None)
    with tables.open(owned=[0, 1], writer="mine") as table:
        table.update(dict.fromkeys(_halves()[0], b"1"))
        table.commit({"n": 1})
    tables.roll_up(tmp_path)
    return tables


def _others_go_on(tables: TableRig, key: bytes, tmp_path: Path) -> None:
    """Let other writers commit until the earlier snapshots are removed."""
    for turn in range(4):
        with tables.open(owned=[2, 3], writer="theirs") as other, tables.rig.open() as log:
            other[key] = b"%d" % turn
            other.commit({"n": turn})
            _drop_leases(log)
        tables.roll_up(tmp_path)


def test_a_commit_that_was_settled(tmp_path: Path) -> None:
    """After an unknown outcome, the table's own Open is no other owner's, so later snapshots are usable."""
    faults = Unanswered()
    tables, (mine, theirs) = _halved(faults, tmp_path), _halves()
    with tables.open(owned=[0, 1], writer="mine", settings=TableSettings(loading=Loading.ON_DEMAND)) as table:
        faults.is_next = True
        table[mine[0]] = b"2"
        table.commit({"n": 2})
        assert not faults.is_next
        _others_go_on(tables, theirs[0], tmp_path)
        assert content(table) == dict.fromkeys(mine, b"1") | {mine[0]: b"2"}
        assert not table.is_local
        table.commit({"n": 3})


def test_a_commit_that_is_settled_while_snapshots_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that began before the table's own resolving Open does not take it for another owner's."""
    faults, listed = Unanswered(), Snapshots.listed
    tables, (mine, theirs) = _halved(faults, tmp_path), _halves()

    def slowly(snapshots: Snapshots) -> object:
        monkeypatch.undo()
        faults.is_next = True
        table[mine[0]] = b"2"
        table.commit({"n": 2})
        _others_go_on(tables, theirs[0], tmp_path)
        return listed(snapshots)

    with tables.open(owned=[0, 1], writer="mine", settings=TableSettings(loading=Loading.ON_DEMAND)) as table:
        monkeypatch.setattr(Snapshots, "listed", slowly)
        assert cast("Any", table)._state._base._newest(may_be_ahead=True).state.writers
        assert (table[mine[0]], faults.is_next) == (b"2", False)


def test_what_loads_right_behind_a_settled_commit(tmp_path: Path) -> None:
    """Rows loaded right behind a resolved commit, before the state has it, are not taken for another owner's."""
    faults, rows = Unanswered(), list[int]()
    tables, (mine, theirs) = _halved(faults, tmp_path), _halves()

    def crash(point: str) -> None:
        if point != "history" or rows:
            return
        _others_go_on(tables, theirs[0], tmp_path)
        state: Any = cast("Any", table)._state
        rows.append(sum(found.num_rows for found in state._remote_tables(state.missing)))

    options = {"settings": TableSettings(loading=Loading.ON_DEMAND), "environment": Environment(crash=crash)}
    with tables.open(owned=[0, 1], writer="mine", **options) as table:
        faults.is_next = True
        table[mine[0]] = b"2"
        table.commit({"n": 2})
        assert not faults.is_next
        assert rows == [len(mine)]
        assert content(table) == dict.fromkeys(mine, b"1") | {mine[0]: b"2"}


def test_others_have_a_newer_value_schema(tmp_path: Path) -> None:
    """A table that cannot read the others' newer value schema stays on an older snapshot, which its lease holds."""
    mine, theirs = _halves()
    tables, now_s = TableRig(twin_rig("log"), None), 0.0
    schema = '{"type": "record", "name": "V", "fields": [{"name": "a", "type": "%s"}]}'
    settings = TableSettings(loading=Loading.ON_DEMAND, recovery=RecoverySettings(lease_ttl_s=TTL_S), cache_bytes=2)
    with tables.open(owned=[0, 1], writer="mine", value_schema=schema % "int") as table:
        table.update({key: {"a": 1} for key in mine})
        table.commit({"n": 1})
    tables.roll_up(tmp_path)
    clock = Environment(clock=lambda: now_s, start=inline)
    with tables.open(owned=[0, 1], writer="mine", settings=settings, environment=clock) as table:
        with tables.rig.open() as log:
            log.evolve_value_schema(schema % "long")
        for turn in range(4):
            with tables.open(owned=[2, 3], writer="theirs") as other:
                other.update({key: {"a": 1 << 40} for key in theirs})
                other.commit({"n": turn})
            tables.roll_up(tmp_path)
            now_s += TTL_S / 2
            assert {key: table.get(key) for key in mine} == {key: {"a": 1} for key in mine}
        assert content(table) == {key: {"a": 1} for key in mine}
        assert not table.is_local


def test_a_damaged_run_that_was_merged(rolled: Rolled, either: Path | None) -> None:
    """A damaged run that a newer snapshot has merged costs a log line, and the table continues from there."""
    with rolled.open(Loading.ON_DEMAND, either) as table, rolled.rig.open() as log:
        base = _runs(rolled)
        for turn in range(4):
            rolled.put(table, dict.fromkeys(KEYS[turn::9], b"mine-%d" % turn))
            table.commit()
            rolled.roll_up()
        newest = log.manifests.newest()
        assert newest is not None
        assert base <= _runs(rolled), "the lease holds the runs"
        for path in base - {run.path for run in newest.runs}:
            rolled.rig.disk.flip_byte(f"log/{path}", 8)
        with told("cannot be read"):
            rolled.check(table)
        rolled.put(table, {KEYS[0]: b"last"})
        table.commit()
        rolled.check(table)


def test_a_damaged_run(rolled: Rolled, either: Path | None) -> None:
    """A damaged run that all snapshots have is the error of every read that needs it, and of the next commit."""
    table = rolled.open(Loading.ON_DEMAND, either)
    for path in _runs(rolled):
        rolled.rig.disk.flip_byte(f"log/{path}", 8)
    with told("cannot be read"), pytest.raises(CorruptRun):
        content(table)
    with pytest.raises(CorruptRun):
        table.get(KEYS[4])
    rolled.put(table, {KEYS[0]: b"x"})
    with pytest.raises(CorruptRun):
        table.commit()
    table.close()


def test_which_snapshots_will_do(rolled: Rolled) -> None:
    """A snapshot is unusable if older than the local changes, of another owner's or a loss's history, or unreadable."""
    with rolled.rig.open() as log:
        manifest = log.manifests.read(log.manifests.numbers()[-1])
    (row,) = manifest.state.writers
    at = Eligibility(
        first_position=manifest.position,
        position=manifest.position,
        losses=0,
        writer="table",
        epoch=row.newest_epoch,
        partitions=(0, 1, 2, 3),
    )
    assert at.allows(manifest, ())
    assert not at.is_ahead(manifest)
    behind = replace(at, first_position=0, position=row.commit_offset)
    assert behind.allows(manifest, ())
    assert behind.is_ahead(manifest), "the snapshot has the table's own commit, which is not applied"
    assert replace(behind, position=row.commit_offset + 1).is_ahead(manifest) is False
    former = replace(behind, epoch=row.newest_epoch - 1)
    assert former.is_overtaken(manifest)
    assert not former.allows(manifest, ())
    assert replace(former, partitions=()).allows(manifest, ()), "the partition is not ours"
    assert not replace(at, first_position=manifest.position + 1).allows(manifest, ())
    assert not replace(at, losses=-1).allows(manifest, ())
    assert not at.allows(manifest, {manifest.runs[0].path})


def _halves() -> list[list[bytes]]:
    """Return the keys of the first two partitions, and those of the other two."""
    owner = {key: partition_of(key_group_of(key, "bytes", 16), 4, 16) // 2 for key in KEYS}
    return [[key for key in KEYS if owner[key] == half] for half in (0, 1)]


def _runs(rolled: Rolled) -> set[str]:
    return {info.path.removeprefix("log/") for info in rolled.rig.disk.files("log/runs/")}


def _roll_up_unheld(rolled: Rolled) -> None:
    """Roll up without regard to leases."""
    with rolled.rig.open() as log:
        _drop_leases(log)
    rolled.roll_up()


def _drop_leases(log: Log) -> None:
    """Remove the leases, as if they had expired."""
    for lease in list_leases(log.store):
        log.store.delete(lease.path)


class _Watched(threading.Condition):
    """A lock that signals when the thread of the test requests it."""

    asked: "Callable[[], None]" = staticmethod(lambda: None)

    def __enter__(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            self.asked()
        return super().__enter__()


def test_no_commit_comes_into_the_middle_of_a_load(
    rolled: Rolled, directory: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that replaces rows waits while the loading thread takes them, and is applied before or after."""
    is_asked, is_between = threading.Event(), threading.Event()
    loading = list[threading.Thread]()
    monkeypatch.setattr(_Watched, "asked", staticmethod(lambda: is_asked.set() if is_between.is_set() else None))
    monkeypatch.setattr("statelog.tables.state.state.Condition", _Watched)
    store = DictStore if directory is None else RocksdbStore
    unchanged, apply = store.unchanged, store.apply

    def held_up(self: Any, rows: pa.Table) -> pa.Table:
        found = unchanged(self, rows)
        if threading.current_thread() is not threading.main_thread() and found.num_rows and not loading:
            loading.append(threading.current_thread())
            is_between.set()
            assert is_asked.wait(60)
        return found

    def applied(self: Any, *changes: Any) -> None:
        apply(self, *changes)
        is_asked.set()

    monkeypatch.setattr(store, "unchanged", held_up)
    monkeypatch.setattr(store, "apply", applied)
    with rolled.open(Loading.BEHIND, directory) as table:
        assert is_between.wait(60)
        rolled.put(table, {key: None if i % 2 else b"new" for i, key in enumerate(KEYS)})
        table.commit()
        wait_for(lambda: table.is_local)
        rolled.check(table)
    assert loading
