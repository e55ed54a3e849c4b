"""A fixed story of a takeover: an owner commits, a standby follows it and is promoted, and the owner is a zombie.

The zombie does not know: it commits at any moment that a test chooses, in the middle of the promotion, too. Whatever it
was told is committed has to be in the state of the next owner; what it was not told is in state and progress, or in
neither. What a process holds in memory dies with it; its directory stays.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statelog
from statelog.errors import ClosedError, Fenced, StatelogError
from statelog.materializer.round.outcome import CompletedRound, SkippedRound
from statelog.materializer.round.round import Round
from statelog.recovery import Host, RecoverySettings, recover
from statelog.seams import Seams
from statelog.storage.kafka import OffsetRange
from statelog.storage.kafka.memory import MemoryProducer, MemoryReader
from statelog.tables import Standby, Table, TableSettings
from tests.support.rigs.log import UNSAFE, settings_for
from tests.support.story.nemesis import Crash, Kind, Nemesis
from tests.support.story.table_story import change, fold
from tests.support.story.world import LOG, Process, World
from tests.support.told import lines
from tests.support.worlds.stepper import SteppedKafka

__all__ = ["END", "StandbyTold", "tell"]

END = 16
_SETTINGS = TableSettings(recovery=RecoverySettings(holder="story", threads=1))


class StandbyTold(NamedTuple):
    """A story that was told: its world, the lines and warnings that came out, and how many moments the zombie had."""

    world: World
    told: list[str]
    moments: int


class _MeddledKafka(SteppedKafka):
    """A view of the cluster that lets somebody else act before each thing that it is asked."""

    meddle: Callable[[], None]

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """As the twin."""
        self.meddle()
        return super().offsets(topic, partitions, at_least=at_least)

    def producer(self) -> MemoryProducer:
        """As the twin."""
        self.meddle()
        return super().producer()

    def reader(self, topic: str) -> MemoryReader:
        """As the twin."""
        self.meddle()
        return super().reader(topic)


@dataclass(slots=True)
class _Held:
    """What a process holds, by its name, and what was acknowledged: the highest offset of the input that a commit
    named. `zombie_at` is the moment of the promotion at which the old owner commits once more.
    """

    world: World
    directories: Mapping[str, Path | None]
    zombie_at: int
    tables: dict[str, Table[bytes, bytes]] = field(default_factory=dict[str, Table[bytes, bytes]])
    standbys: dict[str, Standby[bytes, bytes]] = field(default_factory=dict[str, Standby[bytes, bytes]])
    acknowledged: int = 0
    moments: int = 0
    is_promoting: bool = False

    # ---- opening

    def where(self, process: Process) -> dict[str, Any]:
        """Its views of the ports, and a host that dies and fails as the nemesis says."""
        world = self.world
        kafka = _MeddledKafka(cluster=world.cluster)
        kafka.stepper, kafka.meddle = world.stepper, self.meddle
        host = Host(
            clock=process.tick,
            wall_clock=process.clock,
            nonce=world.nonce,
            crash=self.point,
            start=lambda work: work(),
            disk=world.nemesis.disk_hook,
        )
        directory = self.directories[process.name.rstrip("+")]
        where = {"kafka": kafka, "root": process.store, "allow_unsafe": UNSAFE, "host": host, "settings": _SETTINGS}
        return where if directory is None else where | {"backend": "rocksdb", "directory": directory}

    def table(self, process: Process) -> Table[bytes, bytes]:
        """The process's table, opened if it has none."""
        if process.name not in self.tables:
            made: dict[str, Any] = {"create": True, "replication_factor": 1, "partitions": 2, "key_groups": 4}
            self.tables[process.name] = statelog.table(LOG, **made, **self.where(process))
            self.check(self.tables[process.name], is_owner=True)
        return self.tables[process.name]

    def standby(self, process: Process) -> Standby[bytes, bytes]:
        """The process's standby, opened if it has none."""
        if process.name not in self.standbys:
            self.standbys[process.name] = statelog.standby(LOG, poll_s=None, **self.where(process))
        self.check(self.standbys[process.name], is_owner=False)
        return self.standbys[process.name]

    def drop(self, process: Process) -> None:
        """What it holds is no more: it has died, or starts over."""
        for held in (self.standbys.pop(process.name, None), self.tables.pop(process.name, None)):
            if held is not None:
                with suppress(StatelogError, Crash):
                    held.__exit__(StatelogError, None, None)

    # ---- checks

    def check(self, state: Table[bytes, bytes] | Standby[bytes, bytes], *, is_owner: bool) -> int:
        """It is the fold of the input up to its progress; of an owner no acknowledged commit is missing."""
        offset = int(state.progress.get("offset", 0))
        assert dict(state.items()) == fold(offset), f"{state!r} is not the state at {offset}"
        missing = f"an acknowledged commit is gone: {offset} < {self.acknowledged}"
        assert not is_owner or offset >= self.acknowledged, missing
        return offset

    # ---- the zombie

    def point(self, step: str) -> None:
        """A named point of any process's life."""
        self.meddle()
        self.world.nemesis.point(step)

    def meddle(self) -> None:
        """A moment of a promotion: the old owner may commit in it."""
        if not self.is_promoting:
            return
        self.moments += 1
        if self.moments - 1 == self.zombie_at:
            self.is_promoting = False
            self.zombie_acts()
            self.is_promoting = True

    def zombie_acts(self) -> None:
        """It commits, and may be told so, or fail, or die of it."""
        zombie = self.world.process("owner")
        if zombie.name not in self.tables:
            return
        try:
            with suppress(StatelogError), self.world.nemesis.acting(zombie.name):
                self.commit_one(zombie)
        except Crash:
            if not self.world.nemesis.is_dying(zombie.name):
                raise
            self.drop(zombie)
            self.world.bury("owner")

    def commit_one(self, process: Process) -> None:
        """Process one message of the input, and note it if the commit was acknowledged."""
        table = self.tables[process.name]
        offset = int(table.progress.get("offset", 0))
        key, value = change(offset)
        table.delete(key) if value is None else table.put(key, value)
        table.commit({"offset": offset + 1})
        self.acknowledged = max(self.acknowledged, offset + 1)


def tell(scratch: Path, faults: Mapping[int, Kind], *, is_kept: bool, zombie_at: int = -1) -> StandbyTold:
    """Tell the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict."""
    world = World(scratch, Nemesis(faults))
    directories = {name: scratch / name if is_kept else None for name in ("owner", "heir", "second")}
    held = _Held(world, directories, zombie_at)
    scenes: list[tuple[str, Callable[[_Held, Process], None]]] = [
        ("owner", lambda held, process: _process(held, process, 4)),
        ("heir", _follow),
        ("owner", lambda held, process: _process(held, process, 7)),
        ("heir", _follow),
        ("round", _round),
        ("owner", lambda held, process: _process(held, process, 9)),
        ("round", _round),
        ("heir", _take_over),
        ("owner", _is_over),
        ("heir", lambda held, process: _process(held, process, 13)),
        ("second", _take_over),
        ("heir", _is_over),
        ("second", lambda held, process: _process(held, process, END)),
        ("end", _check_end),
    ]
    with lines() as logged, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, scene in scenes:
            world.play(name, partial(_act, held, scene))
            world.disk.settle()
            world.now_s += 2
        for name in ("owner", "heir", "second"):
            with world.nemesis.acting(world.process(name).name):
                held.drop(world.process(name))
    return StandbyTold(world, [*logged, *(str(one.message) for one in caught)], held.moments)


def _act(held: _Held, scene: Callable[[_Held, Process], None], process: Process) -> None:
    is_over = False
    try:
        scene(held, process)
    except BaseException:
        held.is_promoting = False
        table, standby = held.tables.get(process.name), held.standbys.get(process.name)
        is_over = table is not None or (standby is not None and standby.life.value != "open")
        raise
    finally:
        if is_over or held.world.nemesis.is_dying(process.name):  # It may have died of the last that it did.
            held.drop(process)


def _process(held: _Held, process: Process, goal: int) -> None:
    while int(held.table(process).progress.get("offset", 0)) < goal:
        held.commit_one(process)


def _follow(held: _Held, process: Process) -> None:
    standby = held.standby(process)
    before = held.check(standby, is_owner=False)
    standby.refresh()
    assert held.check(standby, is_owner=False) >= before


def _take_over(held: _Held, process: Process) -> None:
    standby = held.standby(process)
    held.is_promoting = process.name.startswith("heir")
    held.tables[process.name] = standby.promote()
    held.is_promoting = False
    del held.standbys[process.name]
    held.check(held.tables[process.name], is_owner=True)


def _is_over(held: _Held, process: Process) -> None:
    """The former owner hears so at its next commit, if it lives, and shows nothing from then on."""
    table = held.tables.get(process.name)
    if table is None:
        return
    try:
        held.commit_one(process)
    except Fenced:
        with pytest.raises(ClosedError):
            table.get(b"k0")
    except StatelogError:
        pass
    else:
        raise AssertionError("two owners")
    held.drop(process)


def _round(held: _Held, process: Process) -> None:
    world = held.world
    seams = Seams(wall_clock=process.clock, nonce=world.nonce)
    outcome = Round(
        process.log, settings_for(world.scratch), seams=seams, verified=process.verified, disk=world.nemesis.disk_hook
    ).run()
    assert isinstance(outcome, CompletedRound | SkippedRound)


def _check_end(_: _Held, process: Process) -> None:
    with recover(process.log, settings=RecoverySettings(threads=1)) as recovery:
        assert recovery.to_dict() == fold(END)
        last = recovery.last_commit("table")
    assert last is not None
    assert last.metadata == {"offset": END}
