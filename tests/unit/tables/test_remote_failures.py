"""Tables on a snapshot whose store fails, or that is removed, behind a commit, during a read or while loading."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import IdentityChanged, StatelogError, StoreRefused, StoreUnavailable
from statelog.log import Log
from statelog.producer.guard import Life
from statelog.reading.claims import list_leases
from statelog.schemas.snapshot.manifest import next_manifest
from statelog.tables import Loading, Table
from statelog.tables.state.snapshot import RemoteSnapshot
from statelog.testing.store import Fault, MemoryStore
from tests.support.faults.signals import at_line, handled
from tests.support.rigs.table import content
from tests.support.waiting import wait_for
from tests.unit.tables.test_remote_tables import KEYS, TTL_S, Gate, Rolled, directory, either, gate, rolled

__all__ = ["directory", "either", "gate", "rolled"]


class _Refusing:
    """Faults of a store that refuses to read runs on request."""

    error: StatelogError | None = None

    def __call__(self, method: str, path: str) -> Fault | None:
        del method
        if self.error is not None and path.startswith("runs/"):
            raise self.error
        return None


def _inside(table: Table[Any, Any]) -> Any:
    return cast("Any", table)._state


def _forget_what_was_read(table: Table[Any, Any]) -> None:
    base = _inside(table)._base
    base._access.cache._held.clear()
    for run in base.snapshot._runs:
        run._handles._idle.clear()


def test_a_load_that_is_refused(rolled: Rolled, directory: Path | None) -> None:
    """A refused load ends the table at the next commit, which is history by then."""
    gate, refusing = Gate(), _Refusing()
    store = MemoryStore(rolled.rig.disk, "log", faults=refusing)
    environment = Environment(clock=lambda: rolled.now_s, crash=gate.crash)
    with rolled.open(Loading.BEHIND, directory, environment=environment, root=store) as table:
        refusing.error = StoreRefused("403")
        _forget_what_was_read(table)
        gate.open()
        wait_for(lambda: _inside(table)._failure is not None)
        rolled.put(table, {b"n": b"1"})
        with pytest.raises(StoreRefused):
            table.commit({"n": 1})
        assert table.life is Life.FAILED
    refusing.error = None
    with rolled.open(Loading.FIRST, directory) as table:
        assert (table.progress, content(table)) == ({"n": 1}, rolled.model)


@pytest.mark.parametrize("error", [StoreRefused("403"), StoreUnavailable("away")])
def test_a_commit_asks_no_store(rolled: Rolled, directory: Path | None, error: StatelogError) -> None:
    """A commit does not ask the store, even after a count, and for keys that only the snapshot has."""
    refusing = _Refusing()
    store = MemoryStore(rolled.rig.disk, "log", faults=refusing)
    with rolled.open(Loading.ON_DEMAND, directory, root=store) as table:
        assert len(table) == len(rolled.model)
        _forget_what_was_read(table)
        refusing.error = error
        with pytest.raises(type(error)):
            table.get(KEYS[4])
        rolled.put(table, {KEYS[4]: b"x", KEYS[5]: None, b"nowhere": b"y"})
        table.commit({"n": 1})
        refusing.error = None
        assert len(table) == len(rolled.model)
        rolled.put(table, {KEYS[4]: b"xx", KEYS[5]: b"back", b"nowhere": None})
        table.commit({"n": 2})
        rolled.check(table)


@pytest.mark.parametrize("error", [StoreRefused("403"), StoreUnavailable("away")])
def test_a_count_that_fails(rolled: Rolled, error: StatelogError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count is repeated once another snapshot was taken, also after a failure."""
    refusing, counted = _Refusing(), list[Any]()
    with rolled.open(Loading.ON_DEMAND, root=MemoryStore(rolled.rig.disk, "log", faults=refusing)) as table:
        assert len(table) == len(rolled.model)
        inside = _inside(table)
        inside._base.replacements += 1
        _forget_what_was_read(table)
        refusing.error = error
        with pytest.raises(type(error)):
            len(table)
        refusing.error = None
        read = inside._remote_tables

        def noted(wanted: frozenset[int]) -> Any:
            counted.append(wanted)
            return read(wanted)

        monkeypatch.setattr(inside, "_remote_tables", noted)
        assert len(table) == len(rolled.model)
        assert len(counted) == 1


def test_a_scan_that_a_handler_ends(rolled: Rolled) -> None:
    """A handler that raises at any line of a scan's beginning does not block later loads."""

    def end_it() -> None:
        raise TimeoutError

    with rolled.open(Loading.ON_DEMAND) as table:
        inside, at, came = _inside(table), 0, True

        def begin() -> None:
            with closing(inside._all_items(None, None)) as scan:
                next(scan)

        while came:
            with handled(end_it), suppress(TimeoutError):
                came = at_line(at, begin)
            assert not inside._scans
            at += 1


class _LastLook(set[int]):
    """A set of missing key groups. Once its own thread finds one in it, all key groups are loaded right behind."""

    def __init__(self, found: set[int], come: Callable[[], None]) -> None:
        super().__init__(found)
        self._come = come
        self._thread = threading.get_ident()

    def __contains__(self, group: object) -> bool:
        is_missing = super().__contains__(group)
        if is_missing and threading.get_ident() == self._thread:
            self._come()
        return is_missing


def test_all_comes_in_the_middle_of_a_read(rolled: Rolled, directory: Path | None) -> None:
    """A key is found even if its key group is loaded, and its snapshot released, after it was found missing."""
    gate = Gate()
    environment = Environment(clock=lambda: rolled.now_s, crash=gate.crash)
    with rolled.open(Loading.BEHIND, directory, environment=environment) as table:
        inside = _inside(table)

        def come() -> None:
            gate.open()
            wait_for(lambda: inside._base._held is None)

        wait_for(lambda: len(inside.store.missing) < 16)
        inside.store.missing = _LastLook(inside.store.missing, come)
        key = next(key for key in rolled.model if inside.store.get(key) is None)
        assert table.get(key) == rolled.model[key]
        assert table.is_local


def test_the_newest_snapshot_is_of_other_topics(rolled: Rolled, directory: Path | None) -> None:
    """A table whose topics were accepted as lost takes no snapshot of the new ones, and raises from then on."""
    with rolled.open(Loading.ON_DEMAND, directory) as table:
        log = _inside(table)._base._log
        old = log.manifests.newest()
        anew = next_manifest(
            old,
            nonce=bytes(16),
            identity=replace(old.identity, ledger_topic_id="another"),
            state=old.state,
            anchors=old.anchors,
            runs=old.runs,
            created_s=old.created_s,
        )
        assert log.manifests.put(anew)
        for run in old.runs:
            log.store.delete(run.path)
        _forget_what_was_read(table)
        for _ in range(2):
            with pytest.raises(IdentityChanged, match="made for another log"):
                table.get(KEYS[4])


class _Halting:
    """Faults of a store in which the next lease waits on request."""

    def __init__(self) -> None:
        self.is_asked, self.has_begun, self.may_go_on = False, threading.Event(), threading.Event()

    def __call__(self, method: str, path: str) -> Fault | None:
        if self.is_asked and method == "put" and path.startswith("leases/"):
            self.is_asked = False
            self.has_begun.set()
            self.may_go_on.wait(60)
        return None


def test_an_end_while_the_lease_is_renewed(rolled: Rolled, directory: Path | None) -> None:
    """Closing does not wait for a store that renews the lease, and no lease remains once the store has answered."""
    halting = _Halting()
    store = MemoryStore(rolled.rig.disk, "log", faults=halting)
    with rolled.open(Loading.ON_DEMAND, directory, root=store) as table:
        rolled.now_s += TTL_S / 2
        halting.is_asked = True
        table.get(KEYS[4])
        assert halting.has_begun.wait(60)
    halting.may_go_on.set()
    with rolled.rig.open() as log:
        wait_for(lambda: not list_leases(log.store))


def test_an_end_that_is_interrupted(rolled: Rolled, directory: Path | None) -> None:
    """Ctrl-C while closing waits for rows: no more are taken, and the lease is removed."""
    gate, is_held, may_go_on = Gate(), threading.Event(), threading.Event()
    environment = Environment(clock=lambda: rolled.now_s, crash=gate.crash)
    table = rolled.open(Loading.BEHIND, directory, environment=environment)
    inside = _inside(table)

    def hold() -> None:
        with inside._lock:
            is_held.set()
            may_go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(60)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        table.close()
    may_go_on.set()
    holder.join()
    gate.open()
    wait_for(inside._loading.done)
    assert not inside.is_local
    with rolled.rig.open() as log:
        wait_for(lambda: not list_leases(log.store))
    with rolled.open(Loading.FIRST, directory) as later:
        rolled.check(later)


def test_behind_reads_one_snapshot_once(
    rolled: Rolled, either: Path | None, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that loads behind reads one snapshot, which its lease holds during newer rounds.

    A newer one would be read from its beginning, so a load that takes longer than a round would never end.
    """
    read, whole = list[int](), RemoteSnapshot.tables

    def noted(snapshot: RemoteSnapshot, *wanted: Any) -> Iterator[pa.Table]:
        read.append(snapshot.manifest.number)
        return whole(snapshot, *wanted)

    monkeypatch.setattr(RemoteSnapshot, "tables", noted)
    environment = Environment(clock=lambda: rolled.now_s, crash=gate.crash)
    with rolled.open(Loading.BEHIND, either, environment=environment) as table, rolled.rig.open() as log:
        (first,) = list_leases(log.store)
        for turn in range(4):
            rolled.put(table, dict.fromkeys(KEYS[turn::9], b"turn-%d" % turn))
            table.commit()
            rolled.roll_up()
            rolled.now_s += TTL_S / 2
            _renew(table, log)
            gate.step()
        (lease,) = list_leases(log.store)
        assert lease.lease.manifest_number == first.lease.manifest_number
        assert not table.is_local
        gate.open()
        wait_for(lambda: table.is_local)
        rolled.check(table)
    assert read == [first.lease.manifest_number]


def _renew(table: Table[Any, Any], log: Log) -> None:
    """Let a read renew the lease of the table's base, if it is time to."""
    before = list_leases(log.store)
    table.get(b"no such key")
    wait_for(lambda: list_leases(log.store) != before)
