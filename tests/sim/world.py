"""The world of a play: one cluster, one disk, processes that come and go, and what anybody was told or read.

Owns the twins, the clocks and ids (all of them counters), and the journal that the judge reads. Decides nothing about
right and wrong. A process is a fresh view of both twins: nothing of what an earlier one has seen lives on in it.

A play is either told scene by scene (`play`), or by actors whose processes stand still at each call named in `steps`.
"""

import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from statelog.environment import CrashPoint, Environment, NewNonce, inline
from statelog.errors import OutcomeUnknown, PersistFailed, StatelogError, Unavailable
from statelog.log import Log, Where
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound, SkippedRound
from statelog.materializer.round import Round
from statelog.producer import Coordinator, Writer
from statelog.recovery.cursor import Cursor
from statelog.tables import TableSettings
from statelog.testing import Crash
from statelog.testing.cluster import MemoryCluster
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.sim.actors import SteppedKafka, Stepper
from tests.sim.nemesis import Nemesis
from tests.support.rigs.log import UNSAFE, TwinLog, settings_for, where_at
from tests.support.told import lines

__all__ = ["AGAIN", "LOG", "Attempt", "Process", "Read", "State", "StuckError", "World"]

LOG = "story"
AGAIN = (Unavailable, PersistFailed, OutcomeUnknown)
"""After these a program tries again, or opens again; after no other."""
_TRIES = 8
_CLOCKS = ((0.0, 1.0), (-86_400.0, 1.1), (86_400.0, 0.9), (-3_600.0, 0.9), (3_600.0, 1.1))
"""How far ahead a machine's clock is, and how fast it goes: what happens must not depend on it."""
State = dict[bytes, bytes]


class StuckError(AssertionError):
    """Somebody goes on trying and gets nowhere."""


@dataclass(slots=True)
class Attempt:
    """A commit that was tried, by its tag. `offset` is set once it was acknowledged; `refused` if it was told void."""

    tag: str
    writer: str
    checkpoint_id: int
    changes: Mapping[bytes, bytes | None]
    offset: int | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A state that somebody got, at a position; `floor` is what was acknowledged when its reader began to ask."""

    reader: str
    position: int
    floor: int
    state: State


class Process:
    """One process: its views of the twins, a clock that is wrong in its own way, and what it holds in memory."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.kafka = self.view()
        self.store = MemoryStore(world.disk, world.name, faults=world.store_hook)
        self.writer: Writer | None = None
        self.coordinator: Coordinator | None = None
        self.verified = VerifiedRuns()
        self.cursor: Cursor | None = None
        self.state: State = {}
        self._log: Log | None = None
        self._skew_s, self._drift = _CLOCKS[sum(name.encode()) % len(_CLOCKS)]

    def clock(self) -> float:
        """Seconds since 1970, by this machine."""
        return self.world.clock() + self._skew_s

    def tick(self) -> float:
        """For time-outs: goes on a little each time that it is read, faster than on other machines, or slower."""
        return self.world.tick() * self._drift + self._skew_s

    @property
    def log(self) -> Log:
        """The log, opened when it is asked for first."""
        if self._log is None:
            self._log = self.open()
            self._log.patience_s = 0.01
        return self._log

    def view(self) -> SteppedKafka:
        """One more client of its own: a table that ends closes its clients."""
        return SteppedKafka(self.world.cluster, self.world.before, self.world.steps)

    def open(self) -> Log:
        """The log, as this process sees it with a new client. It asks again by this process's clock."""
        where = Where(self.view(), self.store, allow_unsafe=UNSAFE)
        return self.environment().run(Log.open, self.world.name, where)

    def environment(self, nonce: NewNonce | None = None) -> Environment:
        """Its clock, ids that never come twice, and no thread beside: when that asks would differ from run to run."""
        return Environment(clock=self.tick, wall_clock=self.clock, nonce=nonce or self.world.nonce, start=inline)

    def table_options(self, directory: Path | None, settings: TableSettings) -> dict[str, Any]:
        """Where a table or standby of this process lives; `directory`: in RocksDB, else in a dict."""
        where = where_at(self.view(), self.store)
        options = {"where": where, "settings": settings}
        return options if directory is None else options | {"backend": "rocksdb", "directory": directory}

    def table_environment(self, crash: CrashPoint) -> Environment:
        """What a table or standby of this process takes from outside."""
        return replace(self.environment(), crash=crash, disk=self.world.nemesis.disk_hook)

    def roll_up(self) -> CompletedRound | SkippedRound:
        """A round, by the daemon's rule: what is in the way is borne, everything else ends it."""
        settings = settings_for(self.world.scratch)
        environment = replace(self.environment(), disk=self.world.nemesis.disk_hook)
        outcome = environment.run(Round, self.log, settings, verified=self.verified).run()
        assert isinstance(outcome, CompletedRound | SkippedRound), outcome
        return outcome

    def die(self) -> None:
        """What it had sent takes its course."""
        for holder in (self.writer, self.coordinator):
            if holder is not None:
                holder.close()


@dataclass(slots=True)
class World:
    """Everything that outlives a process."""

    scratch: Path
    nemesis: Nemesis
    twin: TwinLog | None = None
    """A log that is there before the play, and whose clock is the world's."""
    steps: Collection[str] = ("offsets",)
    """Before each of these calls of Kafka, and for "store" of the store, `before` is called; an actor pauses there."""
    now_s: float = 1_000.0
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)
    stepper: Stepper = field(default_factory=Stepper)
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    reads: list[Read] = field(default_factory=list[Read])
    errors: list[str] = field(default_factory=list[str])
    told: list[str] = field(default_factory=list[str])
    """Warnings, and lines that were logged."""
    _processes: dict[str, Process] = field(default_factory=dict[str, Process])
    _lives: dict[str, int] = field(default_factory=dict[str, int])
    _ids: int = 0
    _ticks: int = 0
    before: Callable[[str], None] = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.stepper.pause
        if self.twin is None:
            self.cluster, self.disk = MemoryCluster(clock=self.clock), MemoryDisk(self.clock)
        else:
            self.cluster, self.disk = self.twin.cluster, self.twin.disk
        self.cluster.faults = self.cluster.questions = self.nemesis

    @property
    def name(self) -> str:
        """The log's."""
        return self.twin.name if self.twin else LOG

    def store_hook(self, method: str, path: str) -> Fault | None:
        """The fault hook of every process' store."""
        if "store" in self.steps:
            self.before(method)
        return self.nemesis.store_hook(method, path)

    # ---- clocks and ids

    def clock(self) -> float:
        """Seconds since 1970; stands still unless the play moves it."""
        return self.twin.now_s if self.twin else self.now_s

    def tick(self) -> float:
        """A clock for time-outs, which goes on a little each time that it is read."""
        self._ticks += 1
        return self.clock() + self._ticks / 1000

    def nonce(self) -> bytes:
        """16 bytes that were never given before."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    # ---- who plays

    def play(self, name: str, scene: Callable[[Process], object]) -> None:
        """Play a scene to its end: again after an error that says so, and in a new process after a death."""
        for _ in range(_TRIES):
            process = self.process(name)
            try:
                with self.nemesis.acting(process.name):
                    scene(process)
            except Crash:
                if not self.nemesis.is_dying(process.name):
                    raise  # Somebody else's: a task's.
                self.bury(name)
            except AGAIN as error:
                self.errors.append(f"{process.name}: {type(error).__name__}: {error}")
            else:
                return
        raise StuckError(f"{name} gets nowhere: {self.errors[-1] if self.errors else 'it dies again and again'}")

    def process(self, name: str) -> Process:
        """The living process of this name."""
        if name not in self._processes:
            self._lives[name] = self._lives.get(name, -1) + 1
            self._processes[name] = Process(self, name + "+" * self._lives[name])
        return self._processes[name]

    def bury(self, name: str) -> None:
        """The process of this name is no more; the next one that is asked for is another."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.die()

    def rest(self) -> None:
        """The scene is over: what was late takes effect, and a moment passes."""
        self.disk.settle()
        self.now_s += 2

    # ---- what is told

    @contextmanager
    def listening(self) -> Generator[None]:
        """What is logged and warned of in this block is noted in `told`."""
        with lines() as logged, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
            self.told += [*logged, *(str(one.message) for one in caught)]

    def try_commit(
        self, process: Process, writer: str, checkpoint_id: int, changes: Mapping[bytes, str | None]
    ) -> Attempt:
        """Note a commit that is about to be tried. Its values get its tag."""
        tag = f"{process.name}.{checkpoint_id}.{len(self.attempts)}"
        tagged = {key: None if value is None else f"{tag}:{value}".encode() for key, value in changes.items()}
        self.attempts[tag] = Attempt(tag, writer, checkpoint_id, tagged)
        return self.attempts[tag]

    def failed(self, attempt: Attempt, error: StatelogError) -> None:
        """Its caller got an error: unless the outcome is unknown, that says that it does not count."""
        attempt.refused = not isinstance(error, OutcomeUnknown)

    def acknowledged(self) -> int:
        """The position behind everything that anybody was told."""
        return max((offset + 1 for offset in self._offsets()), default=0)

    def _offsets(self) -> Iterator[int]:
        return (one.offset for one in self.attempts.values() if one.offset is not None)
