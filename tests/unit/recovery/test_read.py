"""`statelog.read`: the newest committed state of a log, by its name."""

import gc
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.errors import NotFound
from statelog.log import Log
from statelog.materializer import run_round
from statelog.recovery import AtPosition, read
from statelog.tables import TableSettings
from statelog.tables.setup import TableTuning
from statelog.testing import Twin
from tests.support.rigs.log import settings_for

SCHEMA = '{"type": "record", "name": "V", "fields": [{"name": "tags", "type": {"type": "map", "values": "int"}}]}'

TIMES = """{"type": "record", "name": "V", "fields": [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "also", "type": {"type": "map", "values": {"type": "array", "items":
        {"type": "long", "logicalType": "timestamp-millis"}}}}]}"""


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names of the logs that were closed."""
    names, close = list[str](), Log.close

    def noted(self: Log) -> None:
        names.append(self.name)
        close(self)

    monkeypatch.setattr(Log, "close", noted)
    gc.collect()
    names.clear()
    yield names
    gc.collect()


def test_a_notebook_reads_what_is_committed(closed: list[str], tmp_path: Path) -> None:
    """A notebook reads values or columns, of now or an earlier commit, without fencing the owner."""
    twin = Twin()
    options = statelog.LogOptions(key_type="string", value_schema=SCHEMA)
    with statelog.table("visits", twin.where(), create=options) as table:
        table["a"] = {"tags": {"x": 1}}
        table.commit({"offset": 1})
        with statelog.open("visits", twin.where()) as log:
            run_round(log, settings_for(tmp_path))
        position = table.position
        table["b"] = {"tags": {}}
        table.commit({"offset": 2})
        closed.clear()
        with read("visits", twin.where()) as visits:
            last = visits.last_commit("table")
            assert last is not None
            assert (visits.to_arrow().num_rows, last.metadata) == (2, {"offset": 2})
        assert closed == ["visits"]
        assert read("visits", twin.where()).to_dict() == {"a": {"tags": {"x": 1}}, "b": {"tags": {}}}
        earlier = read("visits", twin.where(), at=AtPosition(position))
        assert earlier.to_dict() == {"a": {"tags": {"x": 1}}}
        table["c"] = {"tags": {}}
        table.commit({"offset": 3})


@pytest.mark.parametrize("is_kept", [False, True])
def test_values_come_in_one_form(tmp_path: Path, *, is_kept: bool) -> None:
    """Maps are dicts and times have one zone: before and behind a commit, after a restart, and without the table."""
    twin, at = Twin(), datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    options = statelog.LogOptions(value_schema=TIMES)
    kept: dict[str, Any] = {"backend": "rocksdb", "directory": tmp_path} if is_kept else {}
    given, settings = {"at": at, "also": {"x": [at], "y": []}}, TableSettings(_tuning=TableTuning(recent_bytes=0))
    with statelog.table("times", twin.where(), create=options, settings=settings, **kept) as table:
        table[b"k"] = given
        assert table[b"k"] == given
        shown = [repr(table[b"k"])]
        table.commit()
        shown.append(repr(table[b"k"]))
    with statelog.table("times", twin.where(), settings=settings, **kept) as table:
        shown += [repr(table[b"k"]), repr(next(iter(table.values())))]
    shown.append(repr(read("times", twin.where()).to_dict()[b"k"]))
    assert set(shown) == {shown[0]}


def test_the_log_is_closed_with_what_reads_it(closed: list[str]) -> None:
    """The log is closed when its reader is closed or dropped, or nothing can be read.

    A stream retains it while it is read.
    """
    twin = Twin()
    with statelog.table("visits", twin.where(), create=True) as table:
        table[b"a"] = b"1"
    closed.clear()
    assert read("visits", twin.where()).to_dict() == {b"a": b"1"}
    gc.collect()
    assert closed == ["visits"], "the reader was dropped"
    with closing(read("visits", twin.where()).stream()) as stream:
        assert sum(changes.num_rows for changes, _ in stream) == 1
        assert closed == ["visits"]
    del stream
    gc.collect()
    assert closed == ["visits"] * 2
    with pytest.raises(NotFound):
        read("visits", twin.where(), at=AtPosition(99))
    assert closed == ["visits"] * 3
    with pytest.raises(NotFound):
        read("nothing", twin.where())
