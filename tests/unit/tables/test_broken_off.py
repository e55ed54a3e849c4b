"""After Ctrl-C, or without memory, at any moment of a table or a standby, nothing stays open and it opens again.

The moments are all requests to Kafka, the store, the disk and the machine, and the named points. The exception is
retained with its frames, so objects are really closed, and not only dropped.
"""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from statelog.environment import Environment
from statelog.recovery import RecoverySettings
from statelog.tables import Loading, Table, TableSettings
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import TRUE, Answer, Call
from statelog.testing.kafka import MemoryKafka, MemoryProducer, MemoryReader
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from statelog.testing.twin import Crash, crash_at
from tests.support.rigs.log import TwinRig, twin_rig
from tests.support.rigs.table import TableRig, content
from tests.support.told import lines, told

T = TypeVar("T", MemoryProducer, MemoryReader)
STATE = {b"k%d" % i: b"%d" % i for i in range(20)}


@dataclass(slots=True)
class _Breaker:
    """Raise `what` at the moment `at`, once, or never if it is None.

    If it `is_coarse`, the moments are named points, starts of threads and removals of files, and nothing else.
    """

    what: type[BaseException] = KeyboardInterrupt
    is_coarse: bool = False
    at: int | None = None
    moments: int = 0

    def disk(self, step: str, _: Path) -> None:
        """Note a step on the local disk."""
        if not self.is_coarse:
            self.moment(step)

    def moment(self, *_: object) -> None:
        """Count a moment, and raise if it is the one."""
        self.moments += 1
        if self.moments - 1 == self.at:
            raise self.what

    def question(self, call: Call) -> Answer:
        """Note a question to Kafka."""
        if not self.is_coarse:
            self.moment(call)
        return TRUE

    def file(self, method: str, path: str) -> Fault | None:
        """Note a question to the store."""
        if method == "delete" or not self.is_coarse:
            self.moment(path)
        return None

    def start(self, work: Callable[[], None]) -> None:
        """Note the start of a thread, and run it at once."""
        self.moment()
        work()


class _Watched(MemoryKafka):
    """A Kafka that remembers its clients."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster=cluster)
        self.left: list[MemoryProducer | MemoryReader] = []
        """The open clients."""

    def producer(self) -> MemoryProducer:
        """Return the twin's producer."""
        return self._watched(super().producer())

    def reader(self, topic: str) -> MemoryReader:
        """Return the twin's reader."""
        return self._watched(super().reader(topic))

    def _watched(self, client: T) -> T:
        self.left.append(client)
        closes = client.close

        def close() -> None:
            closes()
            if client in self.left:
                self.left.remove(client)

        client.close = close  # type: ignore[method-assign]  # this client alone is watched
        return client


@dataclass(slots=True)
class _World:
    """A log with a snapshot and a commit behind it, and an older directory, which may lack key groups."""

    scratch: Path
    loading: Loading
    is_kept: bool
    breaker: _Breaker
    rig: TwinRig = field(init=False)

    def __post_init__(self) -> None:
        self.scratch.mkdir()
        cluster = MemoryCluster(questions=self.breaker.question)
        self.rig = twin_rig("log", cluster=cluster, disk=MemoryDisk(lambda: 0.0))
        with self.tables(None).open() as table:
            table.update(STATE)
            table.commit({"n": 1})
        self.tables(None).roll_up(self.scratch)
        kept = Loading.FIRST if self.loading is Loading.FIRST else Loading.ON_DEMAND
        with TableRig(self.rig, self.scratch / "kept" / "local", kept).open() as table:
            table[b"k0"] = b"other"
            table.commit({"n": 2})
            assert table.is_local is (self.loading is Loading.FIRST)
        with self.tables(None).open() as table:
            del table[b"k1"]
            table.commit({"n": 3})

    def tables(self, directory: Path | None) -> TableRig:
        """Return tables without a directory of their own."""
        return TableRig(self.rig, directory, self.loading)

    @property
    def environment(self) -> dict[str, Any]:
        """A machine on which any moment may raise. Its clock advances as it is read, and leases are renewed often."""
        breaker = self.breaker
        recovery = RecoverySettings(holder="broken", threads=1, lease_ttl_s=0.01)
        return {
            "environment": Environment(
                clock=partial(next, count(step=0.001)), crash=breaker.moment, start=breaker.start, disk=breaker.disk
            ),
            "settings": TableSettings(recovery=recovery, loading=self.loading),
        }

    @contextmanager
    def place(self) -> Generator[Path]:
        """Return a directory for an incarnation and its successor."""
        path = self.scratch / "life"
        if self.is_kept:
            shutil.copytree(self.scratch / "kept", path)
        yield path / "local"
        shutil.rmtree(path)


Act = Callable[[TableRig, dict[str, Any]], None]


def _own(tables: TableRig, where: dict[str, Any]) -> None:
    with tables.open(**where) as table:
        _work(table)


def _follow(tables: TableRig, where: dict[str, Any]) -> None:
    with lines() as texts, tables.standby("local", **where) as standby:
        standby.refresh()
    assert all("has failed: " in text for text in texts)


def _take_over(tables: TableRig, where: dict[str, Any]) -> None:
    with tables.standby("local", **where) as standby, standby.promote() as table:
        _work(table)


def _work(table: Table[Any, Any]) -> None:
    table[b"k2"] = b"work"
    table.commit({"n": 4})


def _sweep(world_at: Callable[[int], _World], act: Act) -> int:
    """Interrupt at every moment, each time in another world, and open again. Return the number of moments."""
    for at in count():
        world = world_at(at)
        breaker = world.breaker
        kafka = _Watched(world.rig.cluster)
        store = MemoryStore(world.rig.disk, "log", faults=breaker.file)
        raised: list[BaseException] = []
        with world.place() as directory:
            tables = world.tables(directory)
            breaker.at, breaker.moments = at, 0
            try:
                act(tables, {"kafka": kafka, "root": store, **world.environment})
            except breaker.what as error:
                raised.append(error)
            is_over = breaker.moments <= at
            breaker.at = None
            assert kafka.left == [], f"interrupted at moment {at}"
            with tables.open() as table:
                assert content(table).keys() == STATE.keys() - {b"k1"}, f"interrupted at moment {at}"
        shutil.rmtree(world.scratch)
        if is_over:
            return at
    raise AssertionError("there are ever more moments")


WAYS = [
    *((_own, loading) for loading in Loading),
    *((act, Loading.FIRST) for act in (_follow, _take_over)),  # A standby's state is whole.
]


@pytest.mark.parametrize(("act", "loading"), [(_own, Loading.BEHIND), *WAYS[-2:]])
def test_at_named_points(act: Act, loading: Loading, tmp_path: Path) -> None:
    """Interrupts at named points leave nothing open, with a directory that is behind and lacks key groups."""

    def world_at(at: int) -> _World:
        return _World(tmp_path / str(at), loading, is_kept=True, breaker=_Breaker(is_coarse=True))

    assert _sweep(world_at, act) > 4


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize(("act", "loading"), WAYS)
@pytest.mark.parametrize("what", [KeyboardInterrupt, MemoryError])
def test_at_every_moment(what: type[BaseException], act: Act, loading: Loading, is_kept: bool, tmp_path: Path) -> None:
    """Interrupts at every moment leave nothing open, with a retained directory and a new one."""

    def world_at(at: int) -> _World:
        return _World(tmp_path / str(at), loading, is_kept, breaker=_Breaker(what))

    assert _sweep(world_at, act) > 20


def test_what_cannot_be_used_stays_until_its_successor_is_whole(tmp_path: Path) -> None:
    """A table that dies while it rebuilds leaves the old directory. Its successor quarantines that once."""
    kept = TableRig(twin_rig("log"), tmp_path)
    with kept.open() as table:
        table.update(STATE)
        table.commit({"n": 1})
    home = tmp_path / "log" / "table"
    (home / "db" / "CURRENT").unlink()
    with pytest.raises(Crash), kept.open(environment=Environment(crash=crash_at("recovered"))):
        pass
    assert (home / "db").is_dir()
    assert not list(home.glob("aside-*"))
    with told("set aside"), kept.open() as table:
        assert content(table) == STATE
    assert len(list(home.glob("aside-*"))) == 1
    assert not (home / "making").exists()
