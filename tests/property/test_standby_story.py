"""A takeover by a standby, again and again: the zombie commits at every moment of it; operations fail and kill.

An owner commits, a standby follows it and is promoted. The owner does not know it, and commits in the middle of the
promotion, too. A process's memory dies with it; its directory stays. Every visible state is the fold of the input up to
its progress, and every acknowledged commit is in the state of the next owner. A former owner learns that its epoch has
ended, and the story comes to the same end.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statelog
from statelog.errors import ClosedError, Fenced, StatelogError
from statelog.recovery import RecoverySettings
from statelog.tables import Standby, Table, TableSettings
from statelog.testing import Crash
from tests.sim.judge import InputJudge
from tests.sim.nemesis import Kind, Nemesis
from tests.sim.plays.table import INPUT, MADE, check_dues, take
from tests.sim.sweep import Faults, Sweep, Telling
from tests.sim.world import LOG, Process, World

END = 16
_SETTINGS = TableSettings(recovery=RecoverySettings(holder="story", threads=1))
_OWNERS = ("owner", "heir", "second")


@dataclass(slots=True)
class StandbyPlay:
    """The tables and standbys of processes, by name.

    `zombie_at` is the moment of the promotion at which the old owner commits once more; the promotion has so many
    `moments`.
    """

    world: World
    is_kept: bool
    zombie_at: int
    is_timed: bool = False
    judge: InputJudge = field(default_factory=lambda: InputJudge(INPUT.fold))
    tables: dict[str, Table[bytes, bytes]] = field(default_factory=dict[str, Table[bytes, bytes]])
    standbys: dict[str, Standby[bytes, bytes]] = field(default_factory=dict[str, Standby[bytes, bytes]])
    moments: int = 0
    is_promoting: bool = False

    def __post_init__(self) -> None:
        self.world.steps, self.world.before = ("offsets", "producer", "reader"), self.reach

    # ---- opening

    def where(self, process: Process) -> dict[str, Any]:
        """Return the process's views of the ports."""
        directory = self.world.scratch / process.name.rstrip("+") if self.is_kept else None
        return process.table_options(directory, _SETTINGS)

    def table(self, process: Process) -> Table[bytes, bytes]:
        """Return the process's table, opened if it has none."""
        if process.name not in self.tables:
            environment = process.table_environment(self.point)
            self.tables[process.name] = environment.run(lambda: statelog.table(LOG, create=MADE, **self.where(process)))
            self.judge.check(self.tables[process.name])
        return self.tables[process.name]

    def standby(self, process: Process) -> Standby[bytes, bytes]:
        """Return the process's standby, opened if it has none."""
        if process.name not in self.standbys:
            environment = process.table_environment(self.point)
            self.standbys[process.name] = environment.run(statelog.standby, LOG, poll_s=None, **self.where(process))
        self.judge.check(self.standbys[process.name], is_owner=False)
        return self.standbys[process.name]

    def drop(self, process: Process) -> None:
        """Drop the objects of a process that has died, or starts over."""
        for held in (self.standbys.pop(process.name, None), self.tables.pop(process.name, None)):
            if held is not None:
                with suppress(StatelogError, Crash):
                    held.__exit__(StatelogError, None, None)

    # ---- the zombie

    def point(self, step: str) -> None:
        """Pass a named point of any process."""
        self.meddle()
        self.world.nemesis.point(step)

    def reach(self, call: str) -> None:
        """Let a process call Kafka."""
        self.meddle()
        if call == "offsets":
            self.world.stepper.pause()

    def meddle(self) -> None:
        """Pass a moment of a promotion, in which the old owner may commit."""
        if not self.is_promoting:
            return
        self.moments += 1
        if self.moments - 1 == self.zombie_at:
            self.is_promoting = False
            self.zombie_acts()
            self.is_promoting = True

    def zombie_acts(self) -> None:
        """Commit as the zombie, which may get an error, fail, or die of it."""
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
        """Process one message of the input, and record it if the commit was acknowledged."""
        table = self.tables[process.name]
        offset = int(table.progress.get("offset", 0))
        take(table, offset, is_timed=self.is_timed)
        table.commit({"offset": offset + 1})
        self.judge.hear(offset + 1)


def tell(
    scratch: Path, faults: Mapping[int, Kind], *, is_kept: bool, zombie_at: int = -1, is_timed: bool = False
) -> StandbyPlay:
    """Play the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict; `is_timed`:
    most rows have a due.
    """
    held = StandbyPlay(World(scratch, Nemesis(faults)), is_kept, zombie_at, is_timed)
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
        (
            "end",
            lambda held, process: process.table_environment(held.point).run(held.judge.check_end, process.log, END),
        ),
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
        if is_over or held.world.nemesis.is_dying(process.name):  # It may have died of its last operation.
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
    offset = held.judge.check(held.tables[process.name])
    if held.is_timed:
        check_dues(held.tables[process.name], offset)


def _is_over(held: StandbyPlay, process: Process) -> None:
    """Check that the former owner learns so at its next commit, if it is alive, and shows nothing from then on."""
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


pytestmark = pytest.mark.usefixtures("impatient", "collected")


class Way(NamedTuple):
    """The storage of the state, the moment of the promotion at which the zombie commits, and whether rows have dues."""

    is_kept: bool
    zombie_at: int = -1
    is_timed: bool = False


KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 400
ZOMBIES = (-1, 2, 6)
"""Moments at which the zombie commits in stories with other faults: never, before the Open, and behind it."""


def _tell(scratch: Path, faults: Faults, way: Way) -> World:
    world = tell(scratch, faults, is_kept=way.is_kept, zombie_at=way.zombie_at, is_timed=way.is_timed).world
    assert not [line for line in world.told if "set aside" in line], "a sound directory was quarantined"
    assert faults or way.zombie_at not in ZOMBIES or not world.told
    return world


SWEEP = Sweep(_tell)


def _sweep_moments(*, is_kept: bool, each: int = 1) -> None:
    """Let the zombie commit at every `each`-th moment of the promotion."""
    with tempfile.TemporaryDirectory() as scratch:
        play = tell(Path(scratch), {}, is_kept=is_kept)
    assert not play.world.told
    assert play.moments > 10
    SWEEP.play(Telling(f"at {at}", {}, Way(is_kept, at)) for at in range(0, play.moments, each))


def _sweep_single(kind: Kind, *, is_kept: bool, is_timed: bool = False, each: int = 1) -> None:
    """Apply the fault to every `each`-th operation that can have it, with the zombie at one of its moments."""
    for number, at in enumerate(ZOMBIES):
        SWEEP.play(SWEEP.single(kind, Way(is_kept, at, is_timed), first=number * each, each=len(ZOMBIES) * each))


def test_a_zombie_at_any_moment() -> None:
    """An acknowledged zombie commit before the Open is in the state; behind the Open it raises."""
    _sweep_moments(is_kept=False, each=2)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict one operation fails, before or after its effect, or is its process's last."""
    _sweep_single(kind, is_kept=False, each=71)


@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_dues_after_a_takeover(is_kept: bool) -> None:
    """Whatever dies, who takes over has the due of every row."""
    _sweep_single(Kind.CRASH_AFTER, is_kept=is_kept, is_timed=True, each=97)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_every_moment(is_kept: bool) -> None:
    """A zombie may commit at every moment, on both backends."""
    _sweep_moments(is_kept=is_kept)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, is_kept: bool) -> None:
    """Every fault is survived on both backends, with old answers and late writes."""
    _sweep_single(kind, is_kept=is_kept)
    _sweep_single(kind, is_kept=is_kept, is_timed=True, each=5)


@pytest.mark.soak
def test_pairs_of_faults() -> None:
    """Two faults strike one story; the second one strikes the operation that has its number then."""
    SWEEP.play(SWEEP.pairs(PAIRS, [Way(is_kept=False, zombie_at=at) for at in ZOMBIES]))
