"""The refusals of a table, none of which has an effect; in each backend, on the twins and on a broker."""

import asyncio
import copy
import enum
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import InvalidMetadata, Misuse, NoSuchYear, ValueTooLarge
from statelog.producer import Writer
from statelog.producer.guard import Life
from statelog.tables import Table, TableSettings
from tests.support.rigs.table import TableRig, content

MAP = '{"type": "record", "name": "V", "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}]}'
FRACTION = '{"type": "record", "name": "V", "fields": [{"name": "x", "type": "double"}]}'
TIME = """{"type": "record", "name": "V", "fields": [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
HUGE = {"place": "x" * (20 << 20)}


class _Color(str, enum.Enum):  # noqa: UP042 - a StrEnum says what it is
    """A text that prints as another text."""

    RED = "red"


# ---- progress


def test_progress_that_no_commit_can_carry(tables: TableRig) -> None:
    """Progress that no commit can carry is refused before a send: the changes can be undone, and no commit has them."""
    with tables.open() as table:
        table[b"k"] = b"committed"
        table.commit({"n": 1})
        table[b"k"] = b"refused"
        ways: list[Callable[[Any], object]] = [table.commit, table.commit_async]
        ways.append(partial(table.commit_every, 0.0))
        for commit in ways:
            with pytest.raises(InvalidMetadata, match="too large"):
                commit(HUGE)
        table.rollback()
        assert (table.get(b"k"), table.life) == (b"committed", Life.OPEN)
        table.commit({"n": 2})
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"k": b"committed"}, {"n": 2})


@pytest.mark.parametrize("progress", [5, [1], "text", {"a": None}, {1: 2}])
def test_progress_that_is_none(tables: TableRig, progress: Any) -> None:
    """Invalid progress is refused in every way to give it; the table goes on."""
    with tables.open() as table:
        table[b"k"] = b"v"
        ways: list[Callable[[Any], object]] = [table.commit, lambda progress: table.commit_every(0.0, progress)]
        for commit in ways:
            with pytest.raises(InvalidMetadata):
                commit(progress)
        table.commit({"n": 1})
        assert table.progress == {"n": 1}


def test_progress_that_is_not_named(tables: TableRig) -> None:
    """Without progress a commit takes the last named one, by either way to commit, committed or not.

    An empty one is another one.
    """
    with tables.open() as table:
        table[b"k"] = b"1"
        table.commit({"n": 1})
        assert table.commit().metadata == {"n": 1}
        table[b"k"] = b"2"
        table.commit_every(1e9, {"n": 2})
        assert table.commit().metadata == {"n": 2}
        table[b"k"] = b"3"
        table.commit_every(1e9, {"n": 3})
        table.commit_every(1e9)
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"k": b"3"}, {"n": 3})
        assert table.commit().metadata == {"n": 3}
        table.commit({})
        table.commit_every(0.0)
    with tables.open() as table:
        assert table.progress == {}


def test_an_older_progress_is_not_committed(tables: TableRig) -> None:
    """Older progress is not committed with later changes: a restart would count the same input twice.

    A caller that names none is refused, and goes on.
    """
    with tables.open() as table:
        table.commit({"n": 0})
        for n in (1, 2):
            table[b"n"] = b"%d" % n
            calls: list[Callable[[], object]] = [table.commit, table.commit_async, lambda: table.commit_every(0.0)]
            for call in calls:
                with pytest.raises(Misuse, match="names none"):
                    call()
            table.commit_every(1e9, {"n": n})
        table[b"n"] = b"3"
        with pytest.raises(Misuse, match="names none"):
            table.commit_every(1e9)
        table.rollback()
        assert table.commit().metadata == {"n": 0}
        table[b"n"] = b"1"
        table.commit_every(1e9, {"n": 1})
        with pytest.raises(KeyError), table.transaction():
            table[b"n"] = table[b"none"]
        table.commit_every(0.0)
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"n": b"1"}, {"n": 1})
        table[b"n"] = b"2"
        with pytest.raises(Misuse, match="names none"):
            table.commit()
        table.commit(table.progress)


def test_a_table_without_progress(tables: TableRig) -> None:
    """A table whose caller never names progress commits without."""
    with tables.open() as table:
        for n in range(3):
            table[b"n"] = b"%d" % n
            table.commit_every(0.0)
            table[b"m"] = b"%d" % n
            table.commit()
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"n": b"2", b"m": b"2"}, {})


@pytest.mark.parametrize("interval_s", ["1", None, math.nan])
def test_an_interval_that_is_none(tables: TableRig, interval_s: Any) -> None:
    """An invalid interval would never be over; the table goes on, and deferred commits stay deferred."""
    with tables.open() as table:
        table[b"k"] = b"v"
        table.commit_every(1e9, {"n": 1})
        with pytest.raises(Misuse, match="number of seconds"):
            table.commit_every(interval_s, {"n": 2})
    with tables.open() as table:
        assert (content(table), table.progress) == ({b"k": b"v"}, {"n": 1})


def test_interleaved_transactions(tables: TableRig) -> None:
    """Interleaved transactions of two asyncio tasks both raise and are undone, and the table goes on."""

    async def change(table: Table[Any, Any], key: bytes, turns: int) -> None:
        with table.transaction():
            table[key] = b"never"
            for _ in range(turns):
                await asyncio.sleep(0)

    async def both(table: Table[Any, Any]) -> list[BaseException | None]:
        return list(await asyncio.gather(change(table, b"a", 2), change(table, b"b", 3), return_exceptions=True))

    with tables.open() as table:
        table[b"k"] = b"1"
        table.commit_every(1e9, {"n": 1})
        assert [type(one) for one in asyncio.run(both(table))] == [Misuse, Misuse]
        assert content(table) == {b"k": b"1"}
        table.commit({"n": 1})
    with tables.open() as table:
        assert content(table) == {b"k": b"1"}


def test_a_table_is_not_copied(tables: TableRig) -> None:
    """A table is not copied: a copy would share its parts and show their past; a pickle would have none of them."""
    with tables.open() as table:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a Table cannot be copied or pickled"):
                way(table)


def test_whether_there_is_a_key(tables: TableRig) -> None:
    """A membership test finds a key without a count."""
    with tables.open() as table:
        assert not table
        table[b"k"] = b"v"
        assert table
        table.commit()
        del table[b"k"]
        assert not table
        table.rollback()


def test_a_table_that_is_lent(tables: TableRig) -> None:
    """Only the worker commits a table that it lends, and only a transaction undoes."""
    with tables.open() as table:
        table[b"k"] = b"1"
        commit = table.lend()
        ways: list[Callable[[], object]] = [table.commit, table.commit_async, table.rollback]
        ways += [lambda: table.commit_every(0.0), lambda: table.commit_every(1e9, {"n": 9})]
        for call in ways:
            with pytest.raises(Misuse, match="worker's"):
                call()
        with table.transaction():
            table[b"k"] = b"2"
            table.rollback()
        assert table[b"k"] == b"1"
        assert commit({"n": 1}).result().metadata == {"n": 1}


# ---- iteration

_CHANGES: dict[str, Callable[[Table[Any, Any]], object]] = {
    "put": lambda table: table.put(b"k", b"new"),
    "undo": lambda table: table.rollback(),
    "commit": lambda table: table.commit(),
}


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("scan", ["items", "range", "keys"])
def test_an_iterator_that_was_not_asked_yet(tables: TableRig, scan: str, change: str) -> None:
    """An iterator whose state has been replaced raises at its first step: its rows would be of no one moment."""
    with tables.open() as table:
        table.update({b"k": b"v", b"other": b"v"})
        table.commit()
        table[b"j"] = b"uncommitted"
        scans: dict[str, Callable[[], Iterator[Any]]] = {
            "items": lambda: iter(table.items()),
            "range": table.range,
            "keys": lambda: iter(table),
        }
        found = scans[scan]()
        _CHANGES[change](table)
        with pytest.raises(Misuse, match="while it was iterated"):
            next(found)
        if change == "put":
            table.commit()


def test_key_groups_that_are_asked_for(tables: TableRig) -> None:
    """Key groups are given once each, as any kind of number; nothing else is accepted."""
    with tables.open() as table:
        table.update({b"%d" % i: b"v" for i in range(50)})
        table.commit()
        some = dict(table.items([3, 5]))
        for groups in ([5, 3, 3], [np.int64(3), np.uint16(5)], range(3, 6, 2)):
            assert sorted(table.items(cast("Any", groups))) == sorted(some.items())
        for wrong in ([3.0], ["3"], 3):
            with pytest.raises(Misuse, match="whole numbers"):
                table.items(cast("Any", wrong))


# ---- keys and values


def test_a_key_of_a_class_of_its_own(tables: TableRig) -> None:
    """A key of a class of its own is its own text, not the printed one."""
    with tables.open(key_type="string") as table:
        table["red"] = b"1"
        assert table.get(cast("Any", _Color.RED)) == b"1"
        table[_Color.RED] = b"2"
        assert content(table) == {"red": b"2"}
        assert {type(key) for key in table} == {str}
        table.commit()


@pytest.mark.parametrize("names", [("x" * (16 << 20),), tuple("x" * (4 << 20) + str(i) for i in range(5))])
def test_a_value_that_is_large_by_its_names(tables: TableRig, names: tuple[str, ...]) -> None:
    """The keys of a map count in a value's size: an accepted value can be logged."""
    with tables.open(value_schema=MAP) as table:
        with pytest.raises(ValueTooLarge):
            table[b"k"] = {"m": dict.fromkeys(names, 1)}
        table[b"k"] = {"m": {"x": 1}}
        table.commit()


def test_equal_and_not_the_same(tables: TableRig) -> None:
    """Equal and identical differ: a negative zero is another value, and a recovery sees what the table shows."""
    with tables.open(value_schema=FRACTION, settings=TableSettings(skip_equal=True)) as table:
        for value in (0.0, -0.0, -0.0):
            table[b"k"] = {"x": value}
            table.commit()
    with TableRig(tables.rig, None).open() as table:
        assert math.copysign(1.0, table[b"k"]["x"]) == -1.0


def test_a_time_that_python_lacks(tables: TableRig) -> None:
    """A time that Python lacks may lie in a column: the table opens, and only reading it raises, with key and field.

    Other reads go around it, and it can be deleted or overwritten.
    """
    tables.open(value_schema=TIME).close()
    keys, times = [b"far", b"long ago", b"near"], pa.array([1 << 60, -(1 << 60), 0]).cast(pa.timestamp("us", "UTC"))
    with tables.rig.open() as log, Writer(log, "table") as writer:
        writer.append_batch(pa.table({"key": keys, "at": times}))
        writer.commit()

    reads: list[Callable[[Mapping[Any, Any]], object]] = [
        lambda table: table[b"far"],
        lambda table: table.get(b"far"),
        content,
        lambda table: list(table.values()),
        lambda table: list(cast("Any", table).range(b"far", b"fas")),
    ]
    with tables.standby() as standby, tables.open() as table:
        for one in (table, standby):
            for read in reads:
                with pytest.raises(NoSuchYear, match="whose year Python does not have") as told:
                    read(one)
                assert told.value.facts["field"] == "value.at"
                assert told.value.facts["key"] in ("b'far'", "b'long ago'")
            assert (len(one), sorted(one), b"far" in one, b"gone" in one) == (3, keys, True, False)
            assert one[b"near"] == {"at": datetime.fromtimestamp(0, UTC)}
        del table[b"far"]
        table[b"long ago"] = {"at": datetime.fromtimestamp(1, UTC)}
        table.commit()
        assert sorted(content(table)) == [b"long ago", b"near"]
    with TableRig(tables.rig, None).open() as table:
        assert table[b"long ago"] == {"at": datetime.fromtimestamp(1, UTC)}
