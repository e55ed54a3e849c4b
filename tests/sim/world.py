"""The world of a play: one cluster, one disk, processes that come and go, and all acknowledgements and reads.

It owns the twins, the clocks and ids (all of them counters), and the journal that the judge reads. It decides nothing
about right and wrong. A process is a fresh view of both twins: no memory of an earlier one survives in it.

A play runs either scene by scene (`play`), or by actors whose processes pause at each call named in `steps`.
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
"""The errors after which a program tries again, or opens again."""
_TRIES = 8
_CLOCKS = ((0.0, 1.0), (-86_400.0, 1.1), (86_400.0, 0.9), (-3_600.0, 0.9), (3_600.0, 1.1))
"""How far ahead a machine's clock is, and how fast it runs: no result may depend on it."""
State = dict[bytes, bytes]


class StuckError(AssertionError):
    """An actor tries again and again without progress."""


@dataclass(slots=True)
class Attempt:
    """An attempted commit, by its tag. `offset` is set once it was acknowledged; `refused` if its verdict was void."""

    tag: str
    writer: str
    checkpoint_id: int
    changes: Mapping[bytes, bytes | None]
    offset: int | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A state that a reader got, at a position; `floor` is the acknowledged position at the start of its read."""

    reader: str
    position: int
    floor: int
    state: State


class Process:
    """One process: its views of the twins, a clock that is wrong in its own way, and its memory."""

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
        """Return the seconds since 1970, by this machine."""
        return self.world.clock() + self._skew_s

    def tick(self) -> float:
        """Return the time for time-outs: it advances at each read, faster than on other machines, or slower."""
        return self.world.tick() * self._drift + self._skew_s

    @property
    def log(self) -> Log:
        """The log, opened at the first use."""
        if self._log is None:
            self._log = self.open()
            self._log.patience_s = 0.01
        return self._log

    def view(self) -> SteppedKafka:
        """Return one more client of its own: a table that ends closes its clients."""
        return SteppedKafka(self.world.cluster, self.world.before, self.world.steps)

    def open(self) -> Log:
        """Return the log, as this process sees it with a new client, whose checks follow this process's clock."""
        where = Where(self.view(), self.store, allow_unsafe=UNSAFE)
        return self.environment().run(Log.open, self.world.name, where)

    def environment(self, nonce: NewNonce | None = None) -> Environment:
        """Return its clock, ids that never come twice, and no other thread, whose timing would vary from run to run."""
        return Environment(clock=self.tick, wall_clock=self.clock, nonce=nonce or self.world.nonce, start=inline)

    def table_options(self, directory: Path | None, settings: TableSettings) -> dict[str, Any]:
        """Return the place of a table or standby of this process; `directory`: in RocksDB, else in a dict."""
        where = where_at(self.view(), self.store)
        options = {"where": where, "settings": settings}
        return options if directory is None else options | {"backend": "rocksdb", "directory": directory}

    def table_environment(self, crash: CrashPoint) -> Environment:
        """Return the environment of a table or standby of this process."""
        return replace(self.environment(), crash=crash, disk=self.world.nemesis.disk_hook)

    def roll_up(self) -> CompletedRound | SkippedRound:
        """Run a round, by the daemon's rule: obstructions are borne, every other error ends it."""
        settings = settings_for(self.world.scratch)
        environment = replace(self.environment(), disk=self.world.nemesis.disk_hook)
        outcome = environment.run(Round, self.log, settings, verified=self.verified).run()
        assert isinstance(outcome, CompletedRound | SkippedRound), outcome
        return outcome

    def die(self) -> None:
        """Let the process die; its sent records take their course."""
        for holder in (self.writer, self.coordinator):
            if holder is not None:
                holder.close()


@dataclass(slots=True)
class World:
    """All that outlives a process."""

    scratch: Path
    nemesis: Nemesis
    twin: TwinLog | None = None
    """A log that exists before the play, and whose clock is the world's."""
    steps: Collection[str] = ("offsets",)
    """The calls of Kafka, and "store" for the store's, before which `before` is called; an actor pauses there."""
    now_s: float = 1_000.0
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)
    stepper: Stepper = field(default_factory=Stepper)
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    reads: list[Read] = field(default_factory=list[Read])
    errors: list[str] = field(default_factory=list[str])
    told: list[str] = field(default_factory=list[str])
    """Warnings and logged lines."""
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
        """The log's name."""
        return self.twin.name if self.twin else LOG

    def store_hook(self, method: str, path: str) -> Fault | None:
        """Return the fault hook of every process' store."""
        if "store" in self.steps:
            self.before(method)
        return self.nemesis.store_hook(method, path)

    # ---- clocks and ids

    def clock(self) -> float:
        """Return the seconds since 1970, which change only when the play moves them."""
        return self.twin.now_s if self.twin else self.now_s

    def tick(self) -> float:
        """Return the time for time-outs, which advances a little at each read."""
        self._ticks += 1
        return self.clock() + self._ticks / 1000

    def nonce(self) -> bytes:
        """Return 16 bytes that were never given before."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    # ---- the processes

    def play(self, name: str, scene: Callable[[Process], object]) -> None:
        """Play a scene to its end: again after an error that says so, and in a new process after a death."""
        for _ in range(_TRIES):
            process = self.process(name)
            try:
                with self.nemesis.acting(process.name):
                    scene(process)
            except Crash:
                if not self.nemesis.is_dying(process.name):
                    raise  # It belongs to another process: a task's.
                self.bury(name)
            except AGAIN as error:
                self.errors.append(f"{process.name}: {type(error).__name__}: {error}")
            else:
                return
        raise StuckError(f"{name} gets nowhere: {self.errors[-1] if self.errors else 'it dies again and again'}")

    def process(self, name: str) -> Process:
        """Return the living process of this name."""
        if name not in self._processes:
            self._lives[name] = self._lives.get(name, -1) + 1
            self._processes[name] = Process(self, name + "+" * self._lives[name])
        return self._processes[name]

    def bury(self, name: str) -> None:
        """Bury the process of this name; the next one that is asked for is another."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.die()

    def rest(self) -> None:
        """End the scene: late writes take effect, and a moment passes."""
        self.disk.settle()
        self.now_s += 2

    # ---- the journal

    @contextmanager
    def listening(self) -> Generator[None]:
        """Record in `told` all logs and warnings of this block."""
        with lines() as logged, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
            self.told += [*logged, *(str(one.message) for one in caught)]

    def try_commit(
        self, process: Process, writer: str, checkpoint_id: int, changes: Mapping[bytes, str | None]
    ) -> Attempt:
        """Record a commit before it is tried. Its values get its tag."""
        tag = f"{process.name}.{checkpoint_id}.{len(self.attempts)}"
        tagged = {key: None if value is None else f"{tag}:{value}".encode() for key, value in changes.items()}
        self.attempts[tag] = Attempt(tag, writer, checkpoint_id, tagged)
        return self.attempts[tag]

    def failed(self, attempt: Attempt, error: StatelogError) -> None:
        """Record a caller's error: unless the outcome is unknown, the attempt does not count."""
        attempt.refused = not isinstance(error, OutcomeUnknown)

    def acknowledged(self) -> int:
        """Return the position behind all acknowledgements."""
        return max((offset + 1 for offset in self._offsets()), default=0)

    def _offsets(self) -> Iterator[int]:
        return (one.offset for one in self.attempts.values() if one.offset is not None)
