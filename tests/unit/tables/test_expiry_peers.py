"""What peers got wrong with state that expires and with timers, each by the number of its thread."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog import LogOptions
from statelog.materializer import run_round
from statelog.recovery import read
from statelog.tables import Table
from statelog.testing import StillClock, Twin, environment
from tests.support.rigs.log import settings_for

NOW_S = 1_790_000_000.0


class _Rig:
    """A log on a twin, and tables of it whose clock is moved by hand."""

    def __init__(self, backend: str, directory: Path) -> None:
        self.twin = Twin()
        self.clock = StillClock(NOW_S)
        self.local: dict[str, Any] = {}
        if backend == "rocksdb":
            self.local = {"backend": backend, "directory": directory / "state"}
        self._scratch = directory / "scratch"
        self._scratch.mkdir()

    def open(self, **options: Any) -> Table[Any, Any]:
        """Return a table, as another process would open it."""
        create = LogOptions(key_type="string", **options)
        with environment(wall_clock=self.clock):
            return statelog.table("log", self.twin.where(), create=create, **self.local)

    def roll_up(self) -> None:
        """Make a snapshot of the log."""
        with statelog.open("log", self.twin.where()) as log:
            run_round(log, settings_for(self._scratch))

    def committed(self) -> dict[Any, Any]:
        """Return the rows that everybody else sees."""
        return read("log", self.twin.where()).to_dict()


@pytest.fixture(params=["dict", "rocksdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Rig]:
    """Yield a new log, for each backend."""
    yield _Rig(request.param, tmp_path)


def test_a_row_that_is_refreshed_with_the_sweep(rig: _Rig) -> None:
    """A row that is put again in the commit that sweeps it stays, with its new due: quix #1129."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.put("b", b"1", due=NOW_S + 10)
        table.commit()
        rig.clock.advance(60)
        table.put("a", b"2", due=NOW_S + 100)
        table.commit()
        assert (dict(table), rig.committed()) == ({"a": b"2"}, {"a": b"2"})
        rig.clock.advance(39)
        table.commit()
        assert rig.committed() == {"a": b"2"}
        rig.clock.advance(2)
        table.commit()
        assert rig.committed() == {}


def test_a_row_that_is_refreshed_while_the_sweep_is_pending(rig: _Rig) -> None:
    """A row that is put again after the sweep was sent, and before it is history, stays: quix #1129."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        rig.clock.advance(60)
        first = table.commit_async()
        table.put("a", b"2", due=NOW_S + 100)
        second = table.commit_async()
        first.result()
        assert table["a"] == b"2"
        second.result()
        assert (dict(table), rig.committed()) == ({"a": b"2"}, {"a": b"2"})


def test_an_equal_stamp_is_used_again(rig: _Rig) -> None:
    """A row that is put again with a due that it had before is swept like any other, and leaves nothing: quix #1129."""
    with rig.open() as table:
        for value, due_s in ((b"1", 50), (b"2", 50), (b"3", 70), (b"4", 50)):
            table.put("a", value, due=NOW_S + due_s)
            table.commit()
        del table["a"]
        table.commit()
        table.put("a", b"5", due=NOW_S + 50)
        table.commit()
        rig.clock.advance(50)
        assert table.statistics().overdue == 1
        table.commit()
        assert (rig.committed(), table.statistics().overdue, table.has_overdue) == ({}, 0, False)


def test_a_state_from_before_there_were_dues(rig: _Rig) -> None:
    """Rows of a snapshot, of a directory and of a tail without dues stay, beside rows that expire: quix #1145."""
    with rig.open() as table:
        table["old"] = table["moved"] = b"1"
        table.commit()
    rig.roll_up()
    for _ in range(2):
        with rig.open() as table:
            table.put("moved", b"2", due=NOW_S + 10)
            table.put("new", b"2", due=NOW_S + 10)
            table.commit()
    rig.clock.advance(60)
    for _ in range(2):
        with rig.open() as table:
            assert dict(table) == {"old": b"1"}
            table.commit()
        rig.roll_up()
    assert rig.committed() == {"old": b"1"}


def test_a_ttl_needs_no_cleaner(rig: _Rig) -> None:
    """A log with a ttl stays small by the commits that its owner makes anyway, without a setting: flink #29149."""
    with rig.open(ttl_s=60) as table:
        for n in range(100):
            table[f"k{n}"] = b"1"
            table.commit()
            rig.clock.advance(10)
            assert len(rig.committed()) <= 7
        assert table.statistics().overdue <= 1


def test_no_cache_returns_what_is_due(rig: _Rig) -> None:
    """A row that was read just before its due is not returned after it, from any cache: pyflink #17115."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        assert table["a"] == b"1"
        rig.clock.advance(10)
        assert table.get("a") is None
    with rig.open() as table:
        assert (table.get("a"), list(table.range())) == (None, [])


def test_a_timer_in_the_past_is_called(rig: _Rig) -> None:
    """A due that has passed when it is given is called at once, whatever was called before it: spark #55474."""
    calls: list[str] = []

    def call(_: Table[str, bytes], key: str, __: bytes) -> None:
        calls.append(key)

    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        rig.clock.advance(60)
        assert table.run_due(call) == 1
        table.put("b", b"1", due=NOW_S - 3600)
        assert table.run_due(call) == 1
        table.put("c", b"1", due=NOW_S - 7200)
        table.put("d", b"1", due=0)
        table.commit()
        assert table.run_due(call) == 2
        table.commit()
    assert calls == ["a", "b", "d", "c"]


def test_a_timer_of_an_idle_key_is_called_once(rig: _Rig) -> None:
    """A key without messages is called when it is due, and not every second: kafka-flow #885."""
    calls: list[float] = []

    def call(*_: object) -> None:
        calls.append(rig.clock() - NOW_S)

    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        for _ in range(100):
            table.run_due(call)
            table.commit()
            rig.clock.advance(1)
    assert calls == [10]


def test_a_timer_that_sets_itself_again_keeps_its_interval(rig: _Rig) -> None:
    """A timer that puts its row with the next due is called once an interval: streamiz #457."""
    calls: list[float] = []

    def again(table: Table[str, bytes], key: str, value: bytes) -> None:
        calls.append(rig.clock() - NOW_S)
        table.put(key, value, due=rig.clock() + 10)

    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        for _ in range(60):
            table.run_due(again)
            table.commit()
            rig.clock.advance(1)
    assert calls == [10, 20, 30, 40, 50]


def test_a_clock_that_jumps_back(rig: _Rig) -> None:
    """A row that was due once stays hidden, and is deleted, whatever the clock does; what is put then lives its ttl."""
    with rig.open(ttl_s=60) as table:
        table["a"] = b"1"
        table.commit()
        rig.clock.advance(60)
        assert "a" not in table
        rig.clock.advance(-30)
        assert "a" not in table
        table["b"] = b"1"
        table.commit()
        assert (dict(table), rig.committed()) == ({"b": b"1"}, {"b": b"1"})
        rig.clock.advance(89)
        assert "b" in table
        rig.clock.advance(1)
        assert "b" not in table


def test_a_reader_sees_what_is_due(rig: _Rig) -> None:
    """A state that somebody else reads has each row until its delete is committed: slatedb #1387."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        rig.roll_up()
        rig.clock.advance(60)
        with statelog.standby("log", rig.twin.where(), poll_s=None) as standby:
            assert dict(standby) == rig.committed() == {"a": b"1"}
            table.commit()
            standby.refresh()
            assert dict(standby) == rig.committed() == {}
