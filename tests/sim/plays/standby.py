"""A fixed story of a takeover: an owner commits, a standby follows it and is promoted, and the owner is a zombie.

The zombie does not know: it commits at any moment that a test chooses, in the middle of the promotion, too. Whatever it
was told is committed has to be in the state of the next owner; what it was not told is in state and progress, or in
neither. What a process holds in memory dies with it; its directory stays.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.errors import ClosedError, Fenced, StatelogError
from statelog.recovery import RecoverySettings
from statelog.tables import Standby, Table, TableSettings
from tests.sim.actors import Crash
from tests.sim.judge import InputJudge
from tests.sim.nemesis import Kind, Nemesis
from tests.sim.plays.table import INPUT, MADE
from tests.sim.world import LOG, Process, World

__all__ = ["StandbyPlay", "tell"]

END = 16
_SETTINGS = TableSettings(recovery=RecoverySettings(holder="story", threads=1))
_OWNERS = ("owner", "heir", "second")


@dataclass(slots=True)
class StandbyPlay:
    """What a process holds, by its name. `zombie_at` is the moment of the promotion at which the old owner commits once
    more; the promotion has so many `moments`.
    """

    world: World
    is_kept: bool
    zombie_at: int
    judge: InputJudge = field(default_factory=lambda: InputJudge(INPUT.fold))
    tables: dict[str, Table[bytes, bytes]] = field(default_factory=dict[str, Table[bytes, bytes]])
    standbys: dict[str, Standby[bytes, bytes]] = field(default_factory=dict[str, Standby[bytes, bytes]])
    moments: int = 0
    is_promoting: bool = False

    def __post_init__(self) -> None:
        self.world.steps, self.world.before = ("offsets", "producer", "reader"), self.reach

    # ---- opening

    def where(self, process: Process) -> dict[str, Any]:
        """Its views of the ports, and a host that dies and fails as the nemesis says."""
        directory = self.world.scratch / process.name.rstrip("+") if self.is_kept else None
        return process.table_options(directory, self.point, _SETTINGS)

    def table(self, process: Process) -> Table[bytes, bytes]:
        """The process's table, opened if it has none."""
        if process.name not in self.tables:
            self.tables[process.name] = statelog.table(LOG, create=MADE, **self.where(process))
            self.judge.check(self.tables[process.name])
        return self.tables[process.name]

    def standby(self, process: Process) -> Standby[bytes, bytes]:
        """The process's standby, opened if it has none."""
        if process.name not in self.standbys:
            self.standbys[process.name] = statelog.standby(LOG, poll_s=None, **self.where(process))
        self.judge.check(self.standbys[process.name], is_owner=False)
        return self.standbys[process.name]

    def drop(self, process: Process) -> None:
        """What it holds is no more: it has died, or starts over."""
        for held in (self.standbys.pop(process.name, None), self.tables.pop(process.name, None)):
            if held is not None:
                with suppress(StatelogError, Crash):
                    held.__exit__(StatelogError, None, None)

    # ---- the zombie

    def point(self, step: str) -> None:
        """A named point of any process's life."""
        self.meddle()
        self.world.nemesis.point(step)

    def reach(self, call: str) -> None:
        """A process is about to ask Kafka."""
        self.meddle()
        if call == "offsets":
            self.world.stepper.pause()

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
        key, value = INPUT.change(offset)
        table.delete(key) if value is None else table.put(key, value)
        table.commit({"offset": offset + 1})
        self.judge.hear(offset + 1)


def tell(scratch: Path, faults: Mapping[int, Kind], *, is_kept: bool, zombie_at: int = -1) -> StandbyPlay:
    """Tell the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict."""
    held = StandbyPlay(World(scratch, Nemesis(faults)), is_kept, zombie_at)
    world = held.world
    scenes: list[tuple[str, Callable[[StandbyPlay, Process], object]]] = [
        ("owner", lambda held, process: _process(held, process, 4)),
        ("heir", _follow),
        ("owner", lambda held, process: _process(held, process, 7)),
        ("heir", _follow),
        ("round", lambda _, process: process.roll_up()),
        ("owner", lambda held, process: _process(held, process, 9)),
        ("round", lambda _, process: process.roll_up()),
        ("heir", _take_over),
        ("owner", _is_over),
        ("heir", lambda held, process: _process(held, process, 13)),
        ("second", _take_over),
        ("heir", _is_over),
        ("second", lambda held, process: _process(held, process, END)),
        ("end", lambda held, process: held.judge.check_end(process.log, END)),
    ]
    with world.listening():
        for name, scene in scenes:
            world.play(name, partial(_act, held, scene))
            world.rest()
        for name in _OWNERS:
            with world.nemesis.acting(world.process(name).name):
                held.drop(world.process(name))
    return held


def _act(held: StandbyPlay, scene: Callable[[StandbyPlay, Process], object], process: Process) -> None:
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


def _process(held: StandbyPlay, process: Process, goal: int) -> None:
    while int(held.table(process).progress.get("offset", 0)) < goal:
        held.commit_one(process)


def _follow(held: StandbyPlay, process: Process) -> None:
    standby = held.standby(process)
    before = held.judge.check(standby, is_owner=False)
    standby.refresh()
    assert held.judge.check(standby, is_owner=False) >= before


def _take_over(held: StandbyPlay, process: Process) -> None:
    standby = held.standby(process)
    held.is_promoting = process.name.startswith("heir")
    held.tables[process.name] = standby.promote()
    held.is_promoting = False
    del held.standbys[process.name]
    held.judge.check(held.tables[process.name])


def _is_over(held: StandbyPlay, process: Process) -> None:
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
