"""Rows with a due keep it, wherever the state of a table comes from, and a table hides and deletes what is due.

The state comes from a directory, from a recovery, from a snapshot that is loaded behind, from the directory of other
partitions, and from a standby.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import rocksdict

from statelog.environment import Environment, inline
from statelog.store.run_writer import RunWriter
from statelog.tables import Loading, Table
from statelog.tables.state import rocksdb
from statelog.tables.state.rocksdb_options import families_of
from statelog.tables.state.store import FAMILY
from tests.support.rigs.log import TwinRig, keys_in, twin_rig
from tests.support.rigs.table import TableRig, content, home, stalling
from tests.support.told import lines

NOW_S = 1_000
DUES: Mapping[bytes, int | None] = {b"k%02d" % n: None if n % 3 == 0 else NOW_S + n for n in range(30)}
"""The due of each key, in seconds."""
HALF_S = NOW_S + 15
LATE_S = NOW_S + 100

Ways = pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])


class Clock:
    """A clock that stands still, unless it is set."""

    now_s = NOW_S

    def environment(self, key_groups: int = 1_000) -> Environment:
        """Return an environment with this clock, in which no more than so many key groups are loaded behind."""
        return Environment(wall_clock=lambda: float(self.now_s), crash=stalling(lambda _: None, key_groups))


@pytest.fixture
def rig() -> TwinRig:
    """Return the Kafka and the store of a log."""
    return twin_rig("log")


@pytest.fixture
def clock() -> Clock:
    """Return the clock of all processes."""
    return Clock()


def _fill(tables: TableRig, clock: Clock) -> None:
    with tables.open(environment=clock.environment()) as table:
        for key, due_s in DUES.items():
            table.put(key, key, due=due_s)
        table.commit({"n": 1})


def _tables(rig: TwinRig, tmp_path: Path, *, is_kept: bool) -> TableRig:
    return TableRig(rig, tmp_path / "local" if is_kept else None)


def _shown(now_s: int) -> dict[bytes, bytes]:
    return {key: key for key, due_s in DUES.items() if due_s is None or due_s > now_s}


def _check(table: Table[Any, Any], now_s: int) -> None:
    """Check what a table shows at a time."""
    shown = _shown(now_s)
    assert content(table) == shown
    assert len(table) == len(shown)
    assert [table.get(key) for key in DUES] == [shown.get(key) for key in DUES]
    assert list(table.range(b"k05", b"k20", reverse=True)) == [
        (key, key) for key in sorted(shown, reverse=True) if b"k05" <= key < b"k20"
    ]
    dues = {key: due.timestamp() for key in shown if (due := table.due(key)) is not None}
    assert dues == {key: due_s for key, due_s in DUES.items() if due_s is not None and key in shown}


def _check_all(rig: TwinRig, table: Table[Any, Any], clock: Clock) -> None:
    """Check what a table shows and deletes as time passes."""
    for now_s in (NOW_S, HALF_S, LATE_S):
        clock.now_s = now_s
        _check(table, now_s)
        assert rig.state() == {key: key for key in DUES}
    table.commit()
    assert rig.state() == _shown(LATE_S)
    _check(table, LATE_S)


@Ways
def test_a_restart_has_every_due(rig: TwinRig, tmp_path: Path, clock: Clock, is_kept: bool) -> None:
    """A restart has the dues of its directory, or of the log, and deletes what came due meanwhile."""
    tables = _tables(rig, tmp_path, is_kept=is_kept)
    _fill(tables, clock)
    with tables.open(environment=clock.environment()) as table:
        assert (table.opening.from_position is not None) is is_kept
        _check_all(rig, table, clock)


@Ways
def test_a_recovery_has_every_due(rig: TwinRig, tmp_path: Path, clock: Clock, is_kept: bool) -> None:
    """A recovery from a snapshot and what was committed since has the dues of both."""
    _fill(TableRig(rig, None), clock)
    tables = _tables(rig, tmp_path, is_kept=is_kept)
    tables.roll_up(tmp_path)
    with TableRig(rig, None).open(environment=clock.environment()) as table:
        table.put(b"k00", b"k00", due=LATE_S)  # Gets a due,
        table.put(b"k01", b"k01")  # loses it,
        table.delete(b"k02")  # goes,
        table.put(b"k04", b"k04", due=NOW_S + 1)  # gets an earlier one.
        table.commit({"n": 2})
    with tables.open(environment=clock.environment()) as table:
        assert table.opening.from_position is None
        found = {key: due.timestamp() for key in table if (due := table.due(key)) is not None}
        wanted = {**DUES, b"k00": LATE_S, b"k01": None, b"k02": None, b"k04": NOW_S + 1}
        assert found == {key: due_s for key, due_s in wanted.items() if due_s is not None}
        clock.now_s = LATE_S
        left = {key for key, due_s in wanted.items() if due_s is None} - {b"k02"}
        assert content(table) == {key: key for key in left}
        table.commit()
    assert rig.state().keys() == left


@Ways
@pytest.mark.parametrize("key_groups", [1, 5, 1_000])
def test_a_snapshot_below(
    rig: TwinRig, tmp_path: Path, clock: Clock, is_kept: bool, key_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that only a snapshot has are hidden from their due on. Commits delete them once they are loaded."""
    monkeypatch.setitem(cast("dict[str, Any]", RunWriter.__init__.__kwdefaults__), "target_rows", 2)
    _fill(TableRig(rig, None), clock)
    TableRig(rig, None).roll_up(tmp_path)
    tables = replace(_tables(rig, tmp_path, is_kept=is_kept), loading=Loading.BEHIND)
    with tables.open(environment=replace(clock.environment(key_groups), start=inline)) as table:
        assert table.is_local is (key_groups == 1_000)
        for now_s in (NOW_S, HALF_S, LATE_S):
            clock.now_s = now_s
            _check(table, now_s)
        table.commit({"n": 2})
        _check(table, LATE_S)
        left = rig.state()
        assert left.keys() >= _shown(LATE_S).keys()
        assert not table.is_local or left == _shown(LATE_S)
    with replace(tables, loading=Loading.FIRST).open(environment=clock.environment()) as table:
        _check(table, LATE_S)
        table.commit({"n": 3})
        assert rig.state() == _shown(LATE_S)


@Ways
def test_other_partitions(rig: TwinRig, tmp_path: Path, clock: Clock, is_kept: bool) -> None:
    """A table that gets other partitions has the dues of their rows, wherever the directory's were from."""
    tables = _tables(rig, tmp_path, is_kept=is_kept)
    _fill(TableRig(rig, None), clock)
    few = [key for one in (0, 1) for key, _ in zip(keys_in(one, 4, 16), range(3), strict=False)]
    with TableRig(rig, None).open(environment=clock.environment()) as table:
        for key in few:
            table.put(key, key, due=NOW_S + 50)
        table.commit({"n": 2})
    owned: dict[str, Any] = {"writer": "part", "environment": clock.environment()}
    with tables.open(owned=[0], **owned) as table:
        assert all(table.due(key) is not None for key in few[:3])
    with lines(), tables.open(owned=[0, 1], **owned) as table:
        assert all(table.due(key) is not None for key in few)
        assert bool(table.opening.set_aside) is is_kept
        clock.now_s = LATE_S
        assert not content(table).keys() & set(few)


@Ways
def test_a_standby_hides_nothing(rig: TwinRig, tmp_path: Path, clock: Clock, is_kept: bool) -> None:
    """A standby shows rows that are due until their deletes are committed. The table that it becomes hides them."""
    tables = _tables(rig, tmp_path, is_kept=is_kept)
    _fill(tables, clock)
    with tables.standby(environment=clock.environment()) as standby:
        with TableRig(rig, None).open(environment=clock.environment()) as table:
            table.put(b"more", b"more", due=HALF_S)
            table.delete(b"k00")
            table.commit({"n": 2})
            clock.now_s = HALF_S
            standby.refresh()
            there = {key: key for key in [*DUES, b"more"] if key != b"k00"}
            assert content(standby) == there
            assert (standby.get(b"more"), len(standby)) == (b"more", len(there))
        hidden = {key for key, due_s in DUES.items() if due_s is not None and due_s <= HALF_S}
        with standby.promote() as promoted:
            assert content(promoted) == {key: key for key in there if key not in hidden | {b"more"}}
            promoted.commit({"n": 3})
            assert rig.state() == content(promoted)


def test_a_program_that_knows_no_dues(
    rig: TwinRig, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not know the column family sets the directory aside, and rebuilds it from the log."""
    tables = _tables(rig, tmp_path, is_kept=True)
    _fill(tables, clock)
    unknown = ["due"]

    def known(path: Path) -> list[str]:
        return [] if unknown and unknown.pop() else families_of(path)

    monkeypatch.setattr(rocksdb, "families_of", known)
    with lines() as logged, tables.open(environment=clock.environment()) as table:
        _check(table, NOW_S)
        assert table.opening.set_aside is not None
    assert any("Column families not opened: due" in line for line in logged)


def test_a_directory_of_a_program_that_knew_no_dues(rig: TwinRig, tmp_path: Path, clock: Clock) -> None:
    """A directory without dues has no family for them. It is read on, and gets it with the first due."""
    tables = _tables(rig, tmp_path, is_kept=True)
    with tables.open(environment=clock.environment()) as table:
        table[b"a"] = b"1"
        table.commit({"n": 1})
    database = str(home(tables) / "db")
    assert sorted(rocksdict.Rdict.list_cf(database)) == ["default", FAMILY]
    with tables.open(environment=clock.environment()) as table:
        assert table.opening.from_position is not None
        table.put(b"b", b"2", due=HALF_S)
        table.commit({"n": 2})
    assert sorted(rocksdict.Rdict.list_cf(database)) == ["default", "due", FAMILY]
    with tables.open(environment=clock.environment()) as table:
        assert table.opening.from_position is not None
        assert content(table) == {b"a": b"1", b"b": b"2"}
        clock.now_s = HALF_S
        assert content(table) == {b"a": b"1"}
