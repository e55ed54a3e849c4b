"""A standby in trouble: its re-creation, tolerated failures, fatal ones, and failing promotions."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import (
    BrokerUnavailable,
    ClosedError,
    ConfigError,
    Fenced,
    IncompleteChangeSet,
    StatelogError,
    Unavailable,
)
from statelog.kafka.port import OffsetRange, TopicDescription
from statelog.log import accept_data_loss
from statelog.materializer import run_round
from statelog.producer.guard import Life
from statelog.recovery import RecoverySettings
from statelog.schemas.ledger.records import LossRange
from statelog.tables import Standby, Table, TableSettings
from statelog.tables.standbys import follower
from statelog.testing.kafka import MemoryKafka, MemoryProducer
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinRig, settings_for, twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.told import told
from tests.support.waiting import wait_for

STATE = {b"k%d" % i: b"%d" % i for i in range(20)}
SCHEMA = '{"type": "record", "name": "V", "fields": [{"name": "a", "type": "int"}%s]}'
UNHELD = TableSettings(recovery=RecoverySettings(holder="standby", lease=False, threads=1))


@pytest.fixture(params=["dict", "rocksdb"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> TableRig:
    """Return tables with each backend in turn, in memory."""
    return TableRig(twin_rig("log"), tmp_path / "local" if request.param == "rocksdb" else None)


class _Away(MemoryKafka):
    """A view of a cluster that is away on request. `producers`: how many more it makes."""

    is_away = False
    producers = 1_000

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return the twin's offsets, unless the cluster is away."""
        self._check()
        return super().offsets(topic, partitions, at_least=at_least)

    def producer(self) -> MemoryProducer:
        """Return the twin's producer, as often as allowed."""
        self._check()
        self.producers -= 1
        if self.producers < 0:
            raise BrokerUnavailable("no more producers")
        return super().producer()

    def _check(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")


def _away(tables: TableRig) -> _Away:
    assert isinstance(tables.rig, TwinRig)
    return _Away(cluster=tables.rig.cluster)


def _filled(tables: TableRig, **options: Any) -> Table[Any, Any]:
    table = tables.open(**options)
    table.update(STATE)
    table.commit({"n": 1})
    return table


def _truncate(tables: TableRig, tmp_path: Path, table: Table[Any, Any]) -> None:
    """Commit and run rounds until the log no longer reaches back to the standby's position."""
    for i in range(4):
        table[b"k0"] = b"round %d" % i
        table.commit({"n": 10 + i})
        with tables.rig.open() as log:
            run_round(log, settings_for(tmp_path))


def _check_all(standby: Standby[Any, Any] | Table[Any, Any], table: Table[Any, Any]) -> None:
    assert content(standby) == dict(table)
    assert standby.progress == table.progress


def _await_no_lease(tables: TableRig) -> None:
    """Remove the lease behind a promotion's back."""
    with tables.rig.open() as log:
        wait_for(lambda: not list(log.store.list("leases/")))


# ---- re-creation


@pytest.mark.parametrize("when", ["refresh", "promote"])
def test_truncated_past_it(tables: TableRig, tmp_path: Path, when: str) -> None:
    """A standby whose position was truncated is re-created with a warning, on refresh and on promotion."""
    with _filled(tables) as table, tables.standby(settings=UNHELD) as standby:
        _truncate(tables, tmp_path, table)
        with told("is rebuilt"):
            other = standby.promote() if when == "promote" else standby
            assert when == "promote" or standby.refresh()
        with other:
            assert content(other) == {**STATE, b"k0": b"round 3"}
            assert other.progress == {"n": 13}
            assert "truncated" in standby.opening.reason or "starts above" in standby.opening.reason
            assert (standby.opening.set_aside is not None) is tables.is_kept
            if other is standby:
                table[b"k0"] = b"on"
                table.commit({"n": 14})
                assert standby.refresh()
                assert standby[b"k0"] == b"on"


def test_a_state_that_nobody_wants_any_more(tables: TableRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close soon ends a re-creation, which may take hours, and leaves the old directory."""
    kafka, begun, goes_on = _away(tables), threading.Event(), threading.Event()
    points, threads = list[str](), list[threading.Thread]()

    def slow(_: str, path: str) -> None:
        if "runs/" in path:
            begun.set()
            goes_on.wait(60)

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    assert isinstance(tables.rig, TwinRig)
    monkeypatch.setattr(follower, "GRACE_S", 0.01)
    root, environment = MemoryStore(tables.rig.disk, "log", faults=slow), Environment(crash=points.append, start=start)
    with _filled(tables) as table, told("is rebuilt"):
        standby = tables.standby(kafka=kafka, root=root, settings=UNHELD, poll_s=0.01, environment=environment)
        kafka.is_away = True
        _truncate(tables, tmp_path, table)
        points.clear()
        kafka.is_away = False
        assert begun.wait(60)
        standby.close()
        goes_on.set()
        for thread in threads:
            thread.join(60)
    assert {"rebuilt", "set-aside"}.isdisjoint(points)


def test_its_lease_holds_the_log(tables: TableRig, tmp_path: Path) -> None:
    """The lease of a standby that is behind holds the log, and is released once it has passed and when it is closed."""
    with _filled(tables) as table, tables.standby() as standby:
        _truncate(tables, tmp_path, table)
        assert standby.refresh()
        _check_all(standby, table)
        assert standby.opening.reason == ""
        with tables.rig.open() as log:
            assert len(list(log.store.list("leases/"))) == 1
            standby.close()
            assert not list(log.store.list("leases/"))


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "only-made"])
def test_a_newer_value_schema(tables: TableRig, is_written: bool) -> None:
    """A standby is re-created in a newer value schema, at the latest when it is promoted, so no field is lost."""
    with tables.open(value_schema=SCHEMA % "") as table:
        table[b"k"] = {"a": 1}
        table.commit({"n": 1})
        standby = tables.standby()
    with tables.rig.open() as log:
        log.evolve_value_schema(SCHEMA % ', {"name": "b", "type": "long", "default": 7}')
    newer = {b"k": {"a": 1, "b": 7}}
    with standby:
        if is_written:
            with TableRig(tables.rig, None).open() as table:
                table[b"l"] = newer[b"l"] = {"a": 2, "b": 8}
                table.commit({"n": 2})
            with told("newer schema"):
                assert standby.refresh()
            assert content(standby) == newer
            promoted = standby.promote()
        else:
            assert standby.refresh()
            assert content(standby) == {b"k": {"a": 1}}
            with told("newer value schema"):
                promoted = standby.promote()
        with promoted:
            assert content(promoted) == newer
            promoted[b"m"] = {"a": 3, "b": 9}
            promoted.commit(promoted.progress)
    with TableRig(tables.rig, None).open() as table:
        assert content(table) == {**newer, b"m": {"a": 3, "b": 9}}


@pytest.mark.usefixtures("busy_ledger")
def test_an_accepted_loss(tables: TableRig) -> None:
    """A standby is re-created after an accepted loss, which it may hold."""
    with _filled(tables) as table, tables.standby() as standby:
        with tables.rig.open() as log:
            accept_data_loss(log, [LossRange(0, 0, 1)], reason="test", operator="me")
        with told("loss was accepted"):
            assert standby.refresh()
        assert content(standby) == tables.rig.state() != dict(table)
        aside = standby.opening.set_aside
        assert aside is None or aside.name.startswith("lost-")


# ---- tolerated and fatal failures


def test_a_broker_that_is_away(tables: TableRig) -> None:
    """A standby serves its ageing state while the broker is away. After the stall time, reads and promotions raise."""
    kafka, now_s = _away(tables), [0.0]
    with _filled(tables) as table:
        standby = tables.standby(kafka=kafka, environment=Environment(clock=lambda: now_s[0]))
        table[b"k0"] = b"new"
        table.commit({"n": 2})
        kafka.is_away = True
        assert not standby.refresh()
        now_s[0] += 20
        assert not standby.refresh()
        assert (standby[b"k0"], standby.age_s) == (b"0", 20)
        kafka.is_away = False
        assert standby.refresh()
        assert (standby[b"k0"], standby.age_s) == (b"new", 0)
        kafka.is_away = True
        assert not standby.refresh()
        now_s[0] += 31
        with told("has failed"), pytest.raises(BrokerUnavailable):
            standby.refresh()
        kafka.is_away = False
        for use in (lambda: standby.get(b"k0"), lambda: list(standby), standby.refresh, standby.promote):
            for _ in range(2):
                with pytest.raises(BrokerUnavailable, match="away"):
                    use()
        assert standby.life is Life.FAILED
        standby.close()
        table[b"k0"] = b"the owner goes on"
        table.commit(table.progress)
        with tables.standby() as another:
            _check_all(another, table)


def test_its_thread_fails(tables: TableRig) -> None:
    """An error of the standby's thread is raised by every read, and the process continues."""
    kafka, over = _away(tables), threading.Event()
    with _filled(tables) as table:

        def crash(step: str) -> None:
            if step == "read":
                over.set()
                raise IncompleteChangeSet("a chunk is missing", partition=3)

        with (
            told("has failed"),
            tables.standby(kafka=kafka, poll_s=0.001, environment=Environment(crash=crash)) as standby,
        ):
            table[b"k0"] = b"x"
            table.commit(table.progress)
            assert over.wait(60)
            for _ in range(2):
                with pytest.raises(IncompleteChangeSet, match="partition=3"):
                    while standby.get(b"k0") == b"0":
                        pass


def test_a_part_of_a_commit_is_never_served(tables: TableRig) -> None:
    """A backend that breaks in the middle of a commit is not read any more. Its directory is right after a restart."""
    with _filled(tables) as table:

        def crash(step: str) -> None:
            if step == "loaded":
                raise Unavailable("the disk is gone")

        standby = tables.standby(environment=Environment(crash=crash))
        table.update({b"k0": b"x", b"k1": b"y"})
        table.commit({"n": 2})
        with told("has failed"), pytest.raises(Unavailable):
            standby.refresh()
        with pytest.raises(Unavailable, match="the disk is gone"):
            standby.get(b"k0")
        standby.close()
        with tables.standby() as another:
            _check_all(another, table)
            assert another.opening.set_aside is None


# ---- failing promotions


def test_before_the_open(tables: TableRig) -> None:
    """If the Open of a promotion cannot be sent, the owner and the standby continue. A later promotion is possible."""
    kafka = _away(tables)
    kafka.producers = 0
    with _filled(tables) as table, tables.standby(kafka=kafka) as standby:
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                standby.promote()
        table[b"k0"] = b"x"
        table.commit({"n": 2})
        assert standby.refresh()
        _check_all(standby, table)
        kafka.producers = 1
        with standby.promote() as promoted:
            _check_all(promoted, table)
            with pytest.raises(Fenced):
                table.commit(table.progress)


@pytest.mark.parametrize("step", ["promoting", "asked", "read", "loaded", "followed", "promoted"])
def test_behind_the_open(tables: TableRig, step: str) -> None:
    """A promotion that fails behind its Open closes the standby and raises. The next table has every commit."""
    failing: list[str] = []

    def crash(passed: str) -> None:
        if passed in failing:
            raise Unavailable("the network is gone")

    with _filled(tables) as table:
        standby = tables.standby(environment=Environment(crash=crash))
        table[b"k0"] = b"x"
        table.commit({"n": 2})
        failing.append(step)
        with pytest.raises(Unavailable, match="the network is gone"):
            standby.promote()
        for use in (lambda: standby.get(b"k0"), standby.promote):
            with pytest.raises(ClosedError):
                use()
        with tables.standby() as another, another.promote() as promoted:
            _check_all(promoted, table)
        _await_no_lease(tables)


@pytest.mark.timeout(60)
def test_a_scan_does_not_hold_a_promotion_up(tables: TableRig) -> None:
    """A promotion interrupts running scans and refuses new ones behind its Open, so it waits for none."""
    scans: list[Iterator[Any]] = []

    def crash(passed: str) -> None:
        if passed == "promoting":
            scans.append(iter(standby.items()))
            with pytest.raises(ClosedError, match="promoted"):
                next(scans[-1])

    with _filled(tables) as table, tables.standby(environment=Environment(crash=crash)) as standby:
        scans.append(iter(standby.items()))
        next(scans[-1])
        table[b"k0"] = b"x"
        table.commit({"n": 2})
        with standby.promote() as promoted:
            _check_all(promoted, table)
        with pytest.raises(ClosedError, match="promoted"):
            next(scans[0])
    assert len(scans) == 2


class _Counted(_Away):
    """A Kafka that records its producers. `operations` are the rights on the topics."""

    def __init__(self, tables: TableRig) -> None:
        assert isinstance(tables.rig, TwinRig)
        super().__init__(cluster=tables.rig.cluster)
        self.operations = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"})
        self.made: list[MemoryProducer] = []

    def producer(self) -> MemoryProducer:
        """Record the twin's producer."""
        self.made.append(super().producer())
        return self.made[-1]

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """Return the twin's topic, with the rights."""
        found = super().describe_topic(topic)
        return None if found is None else replace(found, operations=self.operations)

    def open_ones(self) -> int:
        """Return how many producers are not closed."""
        return sum(one.is_sound for one in self.made)


def test_a_producer_is_made_ahead(tables: TableRig) -> None:
    """A standby has one producer ready. A promotion opens through it and makes none, and a close releases it."""
    kafka = _Counted(tables)
    with _filled(tables) as table:
        with tables.standby(kafka=kafka) as standby:
            assert standby.refresh()
            assert len(kafka.made) == 1
        assert kafka.open_ones() == 0
        standby = tables.standby(kafka=(kafka := _Counted(tables)))
        with standby.promote() as promoted:
            _check_all(promoted, table)
            promoted[b"k0"] = b"x"
            promoted.commit(promoted.progress)
            assert (len(kafka.made), kafka.open_ones()) == (1, 1)
        assert kafka.open_ones() == 0


def test_no_producer_without_the_right_to_write(tables: TableRig) -> None:
    """A standby needs only a reader's rights, and makes no producer without those of a writer."""
    kafka = _Counted(tables)
    rights, kafka.operations = kafka.operations, kafka.operations - {"WRITE"}
    with _filled(tables) as table, tables.standby(kafka=kafka) as standby:
        assert standby.refresh()
        with pytest.raises(ConfigError, match="WRITE"):
            standby.promote()
        assert not kafka.made
        kafka.operations = rights
        with standby.promote() as promoted:
            _check_all(promoted, table)
            assert len(kafka.made) == 1


def test_a_producer_that_went_bad(tables: TableRig) -> None:
    """A promotion replaces a broken producer. If it finds another owner, or fails behind its Open, none stays open."""
    with _filled(tables) as table:
        standby = tables.standby(kafka=(kafka := _Counted(tables)))
        kafka.made[0].close()
        with standby.promote() as promoted:
            _check_all(promoted, table)
            assert (len(kafka.made), kafka.open_ones()) == (2, 1)
        failing = tables.standby(
            "another", kafka=(kafka := _Counted(tables)), environment=Environment(crash=_fail_promoted)
        )
        with pytest.raises(Unavailable):
            failing.promote()
        assert (len(kafka.made), kafka.open_ones()) == (1, 0)


def _fail_promoted(step: str) -> None:
    if step == "promoted":
        raise Unavailable("the network is gone")


def test_scans_are_broken_off(tables: TableRig) -> None:
    """A promotion and a close wait for no scan, which raises."""
    for is_promoted in (True, False):
        with _filled(tables), tables.standby() as standby:
            scan = iter(standby.items())
            next(scan)
            if is_promoted:
                standby.promote().close()
            else:
                standby.close()
            with pytest.raises(ClosedError):
                next(scan)


def test_reads_and_moves_in_many_threads(tables: TableRig) -> None:
    """Two keys that change together are never read apart, in any thread."""
    with tables.open() as table, tables.standby(poll_s=0.0005) as standby:
        table.update({b"a": b"0", b"b": b"0"})
        table.commit(table.progress)
        wrong: list[object] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen = set(dict(standby.items()).values())
                if len(seen) > 1:
                    wrong.append(seen)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for n in range(1, 30):
            table.update({b"a": b"%d" % n, b"b": b"%d" % n})
            table.commit({"n": n})
            assert standby.refresh()
            assert standby[b"a"] == b"%d" % n
        stop.set()
        for reader in readers:
            reader.join(60)
        assert not wrong


def test_errors_that_are_not_ours(tables: TableRig) -> None:
    """Whatever ends the follower, a read raises an error of the tree with its cause."""

    def crash(step: str) -> None:
        if step == "asked":
            raise MemoryError

    with tables.open(), tables.standby(environment=Environment(crash=crash)) as standby:
        with told("has failed"), pytest.raises(MemoryError):
            standby.refresh()
        with pytest.raises(StatelogError, match="MemoryError") as raised:
            standby.get(b"k")
        assert isinstance(raised.value.__cause__, MemoryError)
