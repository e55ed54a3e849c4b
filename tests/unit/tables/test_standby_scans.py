"""Scans of a standby: what they block, and their end when they are dropped."""

import faulthandler
import gc
import math
import os
import signal
import threading
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, LogInUse, Misuse
from statelog.materializer import run_round
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.told import told
from tests.support.waiting import wait_for
from tests.unit.tables.test_standby import SCHEMA, UNHELD

_NESTED = """{"type": "record", "name": "V", "fields": [{"name": "tags", "type":
 {"type": "array", "items": {"type": "map", "values": "string"}}}]}"""


@pytest.fixture(params=["dict", "rocksdb"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> TableRig:
    """Return tables with each backend in turn, in memory."""
    return TableRig(twin_rig("log"), tmp_path / "local" if request.param == "rocksdb" else None)


def test_a_scan_that_is_collected_inside_of_a_read(tables: TableRig) -> None:
    """A scan that is collected at any moment, even in the middle of a copy, ends without waiting for a lock."""
    value: Any = {"tags": [{"a": "b"}, {"c": "d"}, {"e": "f"}]}
    thresholds = gc.get_threshold()
    faulthandler.dump_traceback_later(60, exit=True)  # It hangs if the lock is not reentrant.
    try:
        with tables.open(value_schema=_NESTED) as table:
            table.update({b"k%d" % i: value for i in range(200)})
            table.commit()
        with tables.standby() as standby:
            for _ in range(5):
                cycle: list[Any] = [iter(standby.items())]
                next(cycle[0])
                cycle.append(cycle)
                del cycle
                gc.set_threshold(1)
                assert all(standby.get(b"k%d" % i) == value for i in range(200))
                gc.set_threshold(*thresholds)
            gc.collect()
            assert standby.refresh()
    finally:
        gc.set_threshold(*thresholds)
        faulthandler.cancel_dump_traceback_later()


def test_a_refresh_inside_of_a_scan(tables: TableRig) -> None:
    """A refresh inside of a scan is refused, since it would wait for the scan. The scan continues."""
    with tables.open() as table:
        table.update({b"a": b"1", b"b": b"2"})
        table.commit()
        with tables.standby() as standby:
            found: list[bytes] = []
            for key in standby:
                table[b"c"] = key
                table.commit(table.progress)
                with pytest.raises(Misuse, match="iterates"):
                    standby.refresh()
                found.append(key)
            assert sorted(found) == [b"a", b"b"]
            assert standby.refresh()
            assert content(standby)[b"c"] == found[-1]


@pytest.mark.parametrize("poll_s", [math.inf, math.nan, 0, -1.0, 1e300])
def test_a_pace_that_is_none(tables: TableRig, poll_s: float) -> None:
    """A pace that no thread could wait for is refused."""
    tables.open().close()
    with pytest.raises(ConfigError, match="poll_s"):
        tables.standby(poll_s=poll_s)


def test_values_of_the_owner_that_is_opened(tables: TableRig, tmp_path: Path) -> None:
    """A table that is promoted during a schema change and re-created reads the values of its writer's schema."""

    def evolve(point: str) -> None:
        if point == "promoting":
            with tables.rig.open() as log:
                log.evolve_value_schema(SCHEMA % ', {"name": "b", "type": "long", "default": 7}')

    with tables.open(value_schema=SCHEMA % "") as table:
        table[b"k"] = {"a": 1}
        table.commit()
        standby = tables.standby(settings=UNHELD, environment=Environment(crash=evolve))
        for number in range(4):
            table[b"k0"] = {"a": number}
            table.commit(table.progress)
            with tables.rig.open() as log:
                run_round(log, settings_for(tmp_path))
        with told("another value schema"), standby.promote() as promoted:
            assert content(promoted) == {b"k": {"a": 1}, b"k0": {"a": 3}}
            promoted[b"z"] = {"a": 5}
            promoted.commit()
    with TableRig(tables.rig, None).open() as later:
        assert later[b"z"] == {"a": 5, "b": 7}


def _interrupted(*_: object) -> Any:
    raise KeyboardInterrupt


def test_a_scan_that_does_not_begin(tables: TableRig) -> None:
    """A scan that Ctrl-C interrupts at its beginning, while it sorts keys for example, does not block the state."""
    with tables.open() as table:
        table[b"a"] = b"1"
        table.commit()
        with tables.standby() as standby:
            with pytest.raises(KeyboardInterrupt):
                next(cast("Any", standby)._state.scan(_interrupted))
            table[b"b"] = b"2"
            table.commit(table.progress)
            assert standby.refresh()
            assert content(standby) == {b"a": b"1", b"b": b"2"}


def test_a_promotion_that_is_broken_off_at_once(tables: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a promotion waits for a read leaves the standby and its scans running."""
    with tables.open() as table:
        table[b"a"] = b"1"
        table.commit()
        with tables.standby() as standby:
            with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
                broken.setattr(cast("Any", standby)._state, "break_scans", _interrupted)
                standby.promote()
            assert content(standby) == {b"a": b"1"}


def test_an_end_that_is_interrupted(tables: TableRig) -> None:
    """Ctrl-C while closing waits for a step or a read: everything is released once that is over."""
    with tables.open() as table:
        table[b"a"] = b"1"
        table.commit()
    for what in ("_follower.lock", "_state._lock"):
        standby, is_held, may_go_on = tables.standby(), threading.Event(), threading.Event()

        def hold(lock: Any, is_held: threading.Event = is_held, may_go_on: threading.Event = may_go_on) -> None:
            with lock:
                is_held.set()
                may_go_on.wait(60)

        holder = threading.Thread(target=hold, args=(attrgetter(what)(standby),))
        holder.start()
        is_held.wait(60)
        interrupt = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            cast("Any", standby)._end()
        may_go_on.set()
        holder.join()
        wait_for(lambda: _opens(tables))


def _opens(tables: TableRig) -> bool:
    try:
        tables.standby().close()
    except LogInUse:
        return False
    return True
