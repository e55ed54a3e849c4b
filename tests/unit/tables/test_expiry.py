"""Rows with a due: hidden from their due on, and deleted by commits, the oldest first."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import statelog
from statelog import LogOptions
from statelog.errors import ConfigError, InvalidChange, Misuse, NotCommitted, ValueTooLarge
from statelog.recovery import AtPosition, plan_changes, read, read_changes
from statelog.tables import Table, TableSettings
from statelog.tables.expiry import SWEPT_MAX
from statelog.testing import StillClock, Twin, environment

NOW_S = 1_790_000_000.0


class _Rig:
    """A log on a twin, and tables of it whose clock is moved by hand."""

    def __init__(self) -> None:
        self.twin = Twin()
        self.clock = StillClock(NOW_S)

    def open(self, *, create: LogOptions[Any, Any] | None = None, **settings: Any) -> Table[Any, Any]:
        """Return a table, as another process would open it."""
        made: Any = create or LogOptions(key_type="string")
        with environment(wall_clock=self.clock):
            return statelog.table("log", self.twin.where(), create=made, settings=TableSettings(**settings))

    def committed(self) -> dict[Any, Any]:
        """Return the rows that everybody else sees."""
        return read("log", self.twin.where()).to_dict()

    def logged(self, **options: Any) -> list[dict[str, Any]]:
        """Return the changes of all commits."""
        with statelog.open("log", self.twin.where()) as log:
            plan = plan_changes(log, AtPosition(0))
            return [row for part in read_changes(log, plan, **options) for row in part.to_pylist()]


@pytest.fixture
def rig() -> _Rig:
    """Return a new log."""
    return _Rig()


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_row_is_hidden_from_its_due_on(rig: _Rig, is_committed: bool) -> None:
    """No read returns a row that is due, committed or not. Before its due every read does."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table["b"] = b"2"
        if is_committed:
            table.commit()
        rig.clock.advance(9.999)
        assert (table["a"], len(table), sorted(table)) == (b"1", 2, ["a", "b"])
        assert table.due("a") == datetime.fromtimestamp(NOW_S + 10, UTC)
        rig.clock.advance(0.001)
        assert (table.get("a"), "a" in table, len(table), table.due("a")) == (None, False, 1, None)
        assert dict(table.items()) == dict(table.range()) == {"b": b"2"}
        assert [list(table.prefix("a")), list(table.range(reverse=True))] == [[], [("b", b"2")]]
        assert list(table.items(key_groups=table.key_groups)) == [("b", b"2")]
        with table.transaction():
            assert table.get("a") is None
            table.put("c", b"3", due=NOW_S)
            assert "c" not in table
        with pytest.raises(KeyError):
            del table["a"]
        table.commit()


def test_a_commit_deletes_what_is_due(rig: _Rig) -> None:
    """Others see a row until the commit that deletes it, and the delete is an ordinary one."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table["b"] = b"2"
        table.commit()
        rig.clock.advance(60)
        assert rig.committed() == {"a": b"1", "b": b"2"}
        assert (table.statistics().overdue_s, table.statistics().overdue, table.overdue_s) == (50, 1, 50)
        table.commit()
        assert rig.committed() == {"b": b"2"}
        assert (table.statistics().overdue_s, table.statistics().overdue, table.overdue_s) == (0, 0, 0)


def test_rows_that_are_due_are_news(rig: _Rig) -> None:
    """`commit_every` commits when its time has come, for nothing but rows that are due; and then no more."""
    monotonic = StillClock()
    with environment(clock=monotonic, wall_clock=rig.clock):
        table = statelog.table("log", rig.twin.where(), create=LogOptions(key_type="string"))
    with table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit({"n": 1})
        position = table.position
        for seconds in (5, 5, 5):
            monotonic.advance(5)
            rig.clock.advance(seconds)
            table.commit_every(1.0, {"n": 1})
        assert table.position == position + 1
        assert rig.committed() == {}


def test_no_row_is_swept_early_and_the_oldest_go_first(rig: _Rig) -> None:
    """A commit deletes so many rows in addition to as many as it changes, those that have been due for longest."""
    count = SWEPT_MAX + 50
    with rig.open() as table:
        for n in range(count):
            table.put(f"k{n:05}", b"", due=NOW_S + 1 + n / 1000)
        table.commit()
        rig.clock.advance(60)
        table["new"] = b"1"
        table.commit()
        left = {f"k{n:05}" for n in range(SWEPT_MAX + 1, count)}
        assert rig.committed().keys() == left | {"new"}
        assert table.statistics().overdue == len(left)
        table.commit()
        assert rig.committed().keys() == {"new"}


def test_a_put_moves_a_due_and_another_ends_it(rig: _Rig) -> None:
    """A put with a due replaces the earlier one. A put without it, by any name, ends it."""
    with rig.open() as table:
        for key in ("a", "b", "c"):
            table.put(key, b"1", due=NOW_S + 10)
        table.commit()
        table.put("a", b"2", due=NOW_S + 20)
        table["b"] = b"2"
        table.update(c=b"2")
        assert [table.due(key) for key in ("b", "c", "none")] == [None, None, None]
        rig.clock.advance(15)
        assert sorted(table) == ["a", "b", "c"]
        table.commit()
        rig.clock.advance(1000)
        assert dict(table) == {"b": b"2", "c": b"2"}
        table.commit()
        assert rig.committed() == {"b": b"2", "c": b"2"}


def test_a_due_is_a_time(rig: _Rig) -> None:
    """Seconds and datetimes of any zone are times, rounded up to milliseconds; anything else changes nothing."""
    with rig.open() as table:
        table.put("a", b"1", due=datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
        table.put("b", b"1", due=1_893_456_000.0001)
        assert table.due("a") == datetime(2030, 1, 1, tzinfo=UTC)
        assert table.due("b") == datetime(2030, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)
        changes = table.changes
        wrong: tuple[Any, ...] = ("soon", True, -1, float("nan"), datetime(2030, 1, 1), timedelta(1))  # noqa: DTZ001 - refused
        for due in wrong:
            with pytest.raises(InvalidChange):
                table.put("c", b"1", due=due)
        assert ("c" in table, table.changes) == (False, changes)
        table.commit()


@pytest.mark.parametrize("options", [{}, {"every_change": True}, {"skip_equal": True}], ids=str)
def test_a_due_comes_back(rig: _Rig, options: dict[str, Any]) -> None:
    """The next owner finds rows with their dues, and what was due in between is hidden at once, and then deleted."""
    with rig.open(**options) as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.put("b", b"1", due=NOW_S + 1000)
        table["c"] = b"1"
        table.put("d", b"1", due=NOW_S + 1000)
        table["d"] = b"1"
        table.commit()
    rig.clock.advance(60)
    with rig.open(**options) as table:
        assert (sorted(table), len(table)) == (["b", "c", "d"], 3)
        assert [table.due(key) for key in ("b", "c", "d")] == [datetime.fromtimestamp(NOW_S + 1000, UTC), None, None]
        table.commit()
        assert rig.committed().keys() == {"b", "c", "d"}


def test_every_change_is_logged_with_its_due(rig: _Rig) -> None:
    """With `every_change`, readers of the history see each due, and the delete of the sweep."""
    with rig.open(every_change=True) as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.put("a", b"2", due=NOW_S + 20)
        table["a"] = b"3"
        table.put("a", b"4", due=NOW_S + 30)
        table.commit()
        rig.clock.advance(60)
        table.commit()
    found = rig.logged(due=True)
    dues = [None if row["due"] is None else row["due"].timestamp() - NOW_S for row in found]
    assert [(row["op"], due) for row, due in zip(found, dues, strict=True)] == [
        (0, 10), (0, 20), (0, None), (0, 30), (1, None),
    ]  # fmt: skip


def test_another_due_is_another_row(rig: _Rig) -> None:
    """With `skip_equal`, a put of the present value with another due, or without it, is logged; one alike is not."""
    with rig.open(skip_equal=True) as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
        assert len(rig.logged()) == 1
        table.put("a", b"1", due=NOW_S + 20)
        table.commit()
        rig.clock.advance(15)
        assert table["a"] == b"1"
        table["a"] = b"1"
        table.commit()
    rig.clock.advance(1000)
    with rig.open() as table:
        assert dict(table) == {"a": b"1"}


def test_undo_takes_dues_back(rig: _Rig) -> None:
    """A transaction that raises and a rollback restore the dues, together with the values."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.put("b", b"1")
        table.commit()
        with pytest.raises(KeyError), table.transaction():
            table["a"] = b"2"
            table.put("b", b"2", due=NOW_S)
            assert (table.due("a"), "b" in table) == (None, False)
            raise KeyError
        assert (table["a"], table["b"], table.due("b")) == (b"1", b"1", None)
        assert table.due("a") == datetime.fromtimestamp(NOW_S + 10, UTC)
        with table.transaction(), table.transaction():
            table["a"] = b"3"
            table.put("b", b"3", due=NOW_S + 30)
        assert (table.due("a"), table.due("b")) == (None, datetime.fromtimestamp(NOW_S + 30, UTC))
        table.rollback()
        assert (table.due("a"), table.due("b")) == (datetime.fromtimestamp(NOW_S + 10, UTC), None)


def test_a_refused_commit_sweeps_nothing(rig: _Rig) -> None:
    """A commit that is refused before anything is sent leaves rows that are due as they were; the next one goes on."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit({"n": 1})
        rig.clock.advance(60)
        table["b"] = b"2"
        with pytest.raises(Misuse):
            table.commit({"n": [1]})  # type: ignore[dict-item]  # no progress
        table.commit({"n": 2})
        assert rig.committed() == {"b": b"2"}


def test_a_scan_ends_with_the_commit_that_sweeps(rig: _Rig) -> None:
    """A commit while the table is iterated is Misuse at the next step, whatever it deletes; nothing else happens."""
    with rig.open() as table:
        for key in "abc":
            table.put(key, b"1", due=NOW_S + 10 if key == "a" else None)
        table.commit()
        table["d"] = b"1"
        rig.clock.advance(60)
        found = iter(table.items())
        next(found)
        table.commit_async()
        with pytest.raises(Misuse):
            list(found)


def test_deferred_changes_are_told_from_later_ones(rig: _Rig) -> None:
    """What a close discards, because no progress was named behind it, goes with its dues."""
    table = rig.open()
    table.put("a", b"1", due=NOW_S + 10)
    table.commit_every(1000.0, {"n": 1})
    table.put("b", b"1", due=NOW_S + 10)
    with pytest.raises(NotCommitted):
        table.close()
    with rig.open() as table:
        assert (dict(table), table.due("a")) == ({"a": b"1"}, datetime.fromtimestamp(NOW_S + 10, UTC))


def test_a_value_that_only_fits_without_a_due(rig: _Rig) -> None:
    """A due counts for the size of a change: what does not fit with it is refused at the put."""
    with rig.open() as table:
        size, step = 0, 1 << 24
        while step:
            with suppress(ValueTooLarge):
                table.put("a", bytes(size + step))
                size += step
            step //= 2
        with pytest.raises(ValueTooLarge):
            table.put("a", bytes(size), due=NOW_S + 10)
        assert len(table["a"]) == size
        table.commit()


def test_a_table_on_demand_takes_no_dues(rig: _Rig) -> None:
    """A table that loads on demand refuses a due and goes on; it refuses a log with a ttl before it fences anyone."""
    with rig.open(loading="on-demand") as table:
        with pytest.raises(Misuse, match="on demand"):
            table.put("a", b"1", due=NOW_S)
        table["b"] = b"1"
        table.commit()
        assert dict(table) == {"b": b"1"}
    with statelog.table("ttl", rig.twin.where(), create=LogOptions(ttl_s=60)) as owner:
        with pytest.raises(ConfigError, match="on demand"):
            statelog.table("ttl", rig.twin.where(), settings=TableSettings(loading="on-demand"))
        owner[b"a"] = b"1"
        owner.commit()


def test_a_log_with_dues_is_not_opened_on_demand(rig: _Rig) -> None:
    """A state in which rows have a due is refused, by name, if it is to be loaded on demand."""
    with rig.open() as table:
        table.put("a", b"1", due=NOW_S + 10)
        table.commit()
    with pytest.raises(ConfigError, match="on demand"):
        rig.open(loading="on-demand")


def test_a_ttl_is_given_to_every_put(rig: _Rig) -> None:
    """In a log with a ttl every put is due so many seconds later, unless it names a due of its own."""
    with rig.open(create=LogOptions(key_type="string", ttl_s=2.5)) as table:
        table["a"] = table["b"] = b"1"
        table.put("c", b"1", due=NOW_S + 100)
        assert table.due("a") == datetime.fromtimestamp(NOW_S + 2.5, UTC)
        rig.clock.advance(2)
        table["b"] = b"2"
        table.commit()
        rig.clock.advance(0.5)
        assert sorted(table) == ["b", "c"]
        rig.clock.advance(2)
        assert sorted(table) == ["c"]
        table.commit()
        assert rig.committed() == {"c": b"1"}
    with rig.open() as table:  # The log remembers it.
        table["d"] = b"1"
        assert table.due("d") == datetime.fromtimestamp(rig.clock() + 2.5, UTC)
