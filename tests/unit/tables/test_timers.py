"""Timers: `run_due` calls a function for each row that is due; what it does is one commit with the end of the due."""

from contextlib import nullcontext
from typing import Any

import pytest

import statelog
from statelog import LogOptions
from statelog.errors import ConfigError, Misuse
from statelog.recovery import read
from statelog.tables import Table, WorkerHooks
from statelog.testing import Crash, StillClock, Twin, crash_at, environment

NOW_S = 1_790_000_000.0
Calls = list[tuple[str, bytes]]


class _Rig:
    """A log on a twin, and tables of it whose clock is moved by hand."""

    def __init__(self) -> None:
        self.twin = Twin()
        self.clock = StillClock(NOW_S)
        self.calls: Calls = []

    def open(self, **parts: Any) -> Table[Any, Any]:
        """Return a table, as another process would open it."""
        with environment(wall_clock=self.clock, **parts):
            return statelog.table("log", self.twin.where(), create=LogOptions(key_type="string"))

    def committed(self) -> dict[Any, Any]:
        """Return the rows that everybody else sees."""
        return read("log", self.twin.where()).to_dict()

    def note(self, _: Table[Any, Any], key: str, value: bytes) -> None:
        """Note a call of a timer."""
        self.calls.append((key, value))


@pytest.fixture
def rig() -> _Rig:
    """Return a new log."""
    return _Rig()


def test_rows_come_oldest_first_and_once(rig: _Rig) -> None:
    """Each row that is due is handed out once, in the order of the dues, committed or not; others are not."""
    with rig.open() as table:
        for n, key in enumerate("dbeac"):
            table.put(key, b"%d" % n, due=NOW_S + ord(key))
            if n == 2:
                table.commit()
        rig.clock.advance(ord("d"))
        assert table.run_due(rig.note) == 4
        assert rig.calls == [("a", b"3"), ("b", b"1"), ("c", b"4"), ("d", b"0")]
        assert (table.run_due(rig.note), sorted(table), table.due("a")) == (0, list("abcde"), None)
        table.commit()
        assert (table.run_due(rig.note), set(rig.committed())) == (0, set("abcde"))
        rig.clock.advance(1)
        assert table.run_due(rig.note) == 1
        table.commit()


def test_no_more_than_asked_for(rig: _Rig) -> None:
    """At most so many rows are handed out in one call, and the next call goes on."""
    with rig.open() as table:
        for n in range(25):
            table.put(f"{n:02}", b"", due=NOW_S + n / 10)
        rig.clock.advance(60)
        assert [table.run_due(rig.note, most=10) for _ in range(4)] == [10, 10, 5, 0]
        assert [key for key, _ in rig.calls] == [f"{n:02}" for n in range(25)]
        table.commit()


def test_a_row_is_there_again_for_its_timer(rig: _Rig) -> None:
    """In its timer a row has no due, and the function may delete it, move its due, and change others."""

    def act(table: Table[str, bytes], key: str, value: bytes) -> None:
        assert (table[key], table.due(key)) == (value, None)
        match key:
            case "gone":
                del table[key]
            case "again":
                table.put(key, value + b"!", due=NOW_S + 100)
            case _:
                table["other"] = value

    with rig.open() as table:
        for key in ("gone", "again", "keeps"):
            table.put(key, b"1", due=NOW_S + 10)
        table.commit()
        rig.clock.advance(60)
        assert table.run_due(act) == 3
        table.commit()
        assert rig.committed() == {"again": b"1!", "keeps": b"1", "other": b"1"}
        rig.clock.advance(60)
        assert table.run_due(act) == 1
        table.rollback()


def test_a_row_that_an_earlier_timer_changed(rig: _Rig) -> None:
    """A row that was deleted or moved by a timer of the same call is not handed out in it."""

    def act(table: Table[str, bytes], key: str, _: bytes) -> None:
        rig.calls.append((key, b""))
        table.delete("b")  # `del` finds no row: it is due
        table.put("c", b"2", due=NOW_S + 1000)

    with rig.open() as table:
        for n, key in enumerate("abc"):
            table.put(key, b"1", due=NOW_S + n)
        table.commit()
        rig.clock.advance(60)
        assert (table.run_due(act), rig.calls) == (1, [("a", b"")])
        table.rollback()


def test_a_timer_that_raises_is_undone(rig: _Rig) -> None:
    """If the function raises, what it did and the end of the due are undone. Earlier timers stay done."""

    def act(table: Table[str, bytes], key: str, _: bytes) -> None:
        table["other"] = key.encode()
        if key == "b":
            raise KeyError(key)

    with rig.open() as table:
        for n, key in enumerate("abc"):
            table.put(key, b"1", due=NOW_S + n)
        table.commit()
        rig.clock.advance(60)
        with pytest.raises(KeyError):
            table.run_due(act)
        assert (table["other"], "a" in table, "b" in table) == (b"a", True, False)
        table.commit()
        assert rig.committed() == {"a": b"1", "b": b"1", "c": b"1", "other": b"a"}
        assert table.run_due(rig.note) == 2
        assert [key for key, _ in rig.calls] == ["b", "c"]
        table.commit()


@pytest.mark.parametrize("point", ["sealed", "commit-made"])
def test_a_timer_runs_again_after_a_kill(rig: _Rig, point: str) -> None:
    """A kill before the commit is history leaves the row due, and nothing of what its timer did."""

    def act(table: Table[str, bytes], key: str, value: bytes) -> None:
        rig.note(table, key, value)
        del table[key]
        table["done"] = value

    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
    rig.clock.advance(60)
    with pytest.raises(Crash), rig.open(crash=crash_at(point)) as table:
        table.run_due(act)
        table.commit()
    assert rig.committed() == {"a": b"1"}
    with rig.open() as table:
        assert table.run_due(act) == 1
        table.commit()
    assert (rig.calls, rig.committed()) == ([("a", b"1"), ("a", b"1")], {"done": b"1"})


def test_a_table_with_timers_deletes_nothing_by_itself(rig: _Rig) -> None:
    """From the first call on rows that are due wait for the function, hidden, through any number of commits."""
    with rig.open() as table:
        assert table.run_due(rig.note) == 0
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        rig.clock.advance(60)
        table["b"] = b"2"
        table.commit()
        assert ("a" in table, set(rig.committed())) == (False, {"a", "b"})
        assert table.statistics().overdue_s == 50
        assert table.run_due(rig.note) == 1
        table.commit()
        assert table.statistics().overdue == 0


def test_what_a_timer_sends_leaves_once(rig: _Rig) -> None:
    """A message of a timer is part of the commit that ends the due: not if the timer raises, and once after a kill."""
    rig.twin.create_topic("out")

    def act(table: Table[str, bytes], key: str, value: bytes) -> None:
        table.send("out", value, key=key)
        del table[key]

    def fail(table: Table[str, bytes], key: str, value: bytes) -> None:
        act(table, key, value)
        raise KeyError

    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
    rig.clock.advance(60)
    with pytest.raises(Crash), rig.open(crash=crash_at("commit-made")) as table:
        table.run_due(act)
        table.commit()
    with rig.open() as table:
        with pytest.raises(KeyError):
            table.run_due(fail)
        table.commit()
        assert table.run_due(act) == 1
        table.commit()
    assert [(one.key, one.value) for one in rig.twin.outputs("out")] == [(b"a", b"1")]


@pytest.mark.parametrize(("f", "most"), [(None, 1), ("f", 1), (print, 0), (print, -1), (print, 1.5), (print, True)])
def test_a_wrong_timer_is_refused(rig: _Rig, f: Any, most: Any) -> None:
    """What cannot be called, and a bound that is no positive number, are refused, and change nothing."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S - 1)
        with pytest.raises(Misuse):
            table.run_due(f, most)
        table.commit()
        table.commit()
        assert rig.committed() == {}


def test_a_timer_commits_nothing(rig: _Rig) -> None:
    """A commit inside of a timer is Misuse: the timer may still be undone."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S - 1)
        with pytest.raises(Misuse):
            table.run_due(lambda table, key, value: table.commit())
        assert table.run_due(rig.note) == 1
        table.commit()


@pytest.mark.parametrize("ends_well", [True, False])
def test_timers_belong_to_the_progress_that_was_named(rig: _Rig, *, ends_well: bool) -> None:
    """What timers change between two messages is committed with the last named progress, at the latest by the close."""

    def act(table: Table[str, bytes], key: str, _: bytes) -> None:
        del table[key]
        if key == "b" and not ends_well:
            raise KeyError(key)

    with rig.open() as table:
        for n, key in enumerate("ab"):
            table.put(key, b"1", due=NOW_S + n)
        table["c"] = b"1"
        table.commit({"n": 1})
        rig.clock.advance(60)
        with nullcontext() if ends_well else pytest.raises(KeyError):
            table.run_due(act)
    left = set("c") if ends_well else set("bc")
    assert rig.committed().keys() == left
    with rig.open() as table:
        assert table.progress == {"n": 1}
        table["d"] = b"1"
        table.commit_every(1000.0, {"n": 2})
        table.run_due(rig.note)
        table.commit_every(1000.0)  # names none, and goes on with that
    with rig.open() as table:
        assert (table.progress, set(table)) == ({"n": 2}, left | {"d"})
        table["e"] = b"1"
        table.put("f", b"1", due=NOW_S)
        table.run_due(rig.note)
        with pytest.raises(Misuse):
            table.commit()  # the loop's own change has no progress
        table.rollback()


# ---- workers


def _work(twin: Twin, hooks: WorkerHooks, on_idle: Any, due_s: float | None = 60.0) -> None:
    """Run a worker that puts each message's value under its key, with an earlier due for each, until `on_idle`."""
    options = LogOptions(key_type="string")
    with (
        twin.environment(),
        statelog.worker("log", twin.where(), topic="in", create=options, hooks=hooks) as worker,
    ):
        twin.when_idle = lambda: on_idle(worker)
        for message, table in worker:
            key, value, offset = message.key(), message.value(), message.offset()
            assert key is not None
            assert value is not None
            assert offset is not None
            table.put(key.decode(), value, due=None if due_s is None else twin.clock() + due_s - offset)
            worker.commit_every(1.0)


def _stop(worker: Any) -> None:
    worker.stop()


def test_a_worker_deletes_what_is_due(rig: _Rig) -> None:
    """Without `on_due`, a worker's commits delete rows that are due, whether messages arrive or not."""
    rig.twin.send("in", b"1", key=b"a")
    seen: list[dict[Any, Any]] = []

    def idle(worker: Any) -> None:
        seen.append(rig.committed())
        if len(seen) > 20:
            worker.stop()

    _work(rig.twin, WorkerHooks(), idle)
    assert (seen[0], seen[-1]) == ({(0, "a"): b"1"}, {})


def test_a_worker_calls_timers_without_messages(rig: _Rig) -> None:
    """`on_due` is called once its row is due, not before, and never again for a row that it leaves alone."""
    rig.twin.send("in", b"1", key=b"a")
    due_s = rig.twin.clock() + 60
    late: list[float] = []

    def act(table: Table[str, bytes], key: str, value: bytes) -> None:
        rig.note(table, key, value)
        late.append(rig.twin.clock() - due_s)

    def idle(worker: Any) -> None:
        if rig.twin.clock() > due_s + 600:
            worker.stop()

    _work(rig.twin, WorkerHooks(on_due=act), idle)
    assert rig.calls == [("a", b"1")]
    assert 0 <= late[0] < 1
    assert rig.committed() == {(0, "a"): b"1"}


def test_what_became_due_while_nobody_ran(rig: _Rig) -> None:
    """A worker that opens calls timers of rows that became due meanwhile at once, oldest first, and deletes none."""
    for key in (b"c", b"a", b"b"):
        rig.twin.send("in", b"1", key=key)
    _work(rig.twin, WorkerHooks(on_due=rig.note), _stop)
    assert rig.calls == []
    rig.twin.clock.advance(3600)
    rig.twin.send("in", b"2", key=b"d")
    _work(rig.twin, WorkerHooks(on_due=rig.note), _stop, due_s=None)
    assert rig.calls == [("b", b"1"), ("a", b"1"), ("c", b"1")]
    assert rig.committed().keys() == {(0, key) for key in "abcd"}


def test_an_error_in_a_timer_ends_the_worker(rig: _Rig) -> None:
    """What `on_due` raises comes out of the loop, and what it did is not committed."""
    rig.twin.send("in", b"1", key=b"a")

    def act(table: Table[str, bytes], key: str, _: bytes) -> None:
        del table[key]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _work(rig.twin, WorkerHooks(on_due=act), id)
    assert rig.committed() == {(0, "a"): b"1"}


def test_a_hook_that_is_no_function_is_refused() -> None:
    """`on_due` has to be a function."""
    with pytest.raises(ConfigError):
        WorkerHooks(on_due="f")  # type: ignore[arg-type]  # no function


def test_a_partition_says_how_late_it_is(rig: _Rig) -> None:
    """The statistics of a worker have the seconds since the oldest row is due."""
    rig.twin.send("in", b"1", key=b"a")
    found: list[float | None] = []

    def idle(worker: Any) -> None:
        found.extend(one.overdue_s for one in worker.statistics())
        rig.twin.clock.advance(100)
        found.extend(one.overdue_s for one in worker.statistics())
        worker.stop()

    _work(rig.twin, WorkerHooks(), idle)
    assert found[0] == 0.0
    assert found[1] is not None
    assert found[1] > 30
