"""The world of a story: one cluster, one disk, processes that come and go, and what anybody was told or read.

Owns the twins, the clocks and ids (all of them counters), and the journal that the judge reads. Decides nothing about
right and wrong. A process is a fresh view of both twins: nothing of what an earlier one has seen lives on in it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statelog.errors import OutcomeUnknown, PersistFailed, StatelogError, Unavailable
from statelog.materializer.round.verified_runs import VerifiedRuns
from statelog.producer import Coordinator, Writer
from statelog.recovery.streaming.cursor import Cursor
from statelog.storage.kafka.memory_cluster import MemoryCluster
from statelog.storage.log.log import Log
from statelog.storage.store.memory import MemoryDisk, MemoryStore
from tests.support.rigs.log import UNSAFE
from tests.support.story.nemesis import Crash, Nemesis
from tests.support.worlds.stepper import SteppedKafka, Stepper

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
        self.kafka = SteppedKafka(cluster=world.cluster)
        self.kafka.stepper = world.stepper
        self.store = MemoryStore(world.disk, LOG, faults=world.nemesis.store_hook)
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
            self._log = Log.open(LOG, kafka=self.kafka, root=self.store, allow_unsafe=UNSAFE)
            self._log.patience_s = 0.01
        return self._log

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
    now_s: float = 1_000.0
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)
    stepper: Stepper = field(default_factory=Stepper)
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    reads: list[Read] = field(default_factory=list[Read])
    errors: list[str] = field(default_factory=list[str])
    _processes: dict[str, Process] = field(default_factory=dict[str, Process])
    _lives: dict[str, int] = field(default_factory=dict[str, int])
    _ids: int = 0
    _ticks: int = 0

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(faults=self.nemesis, questions=self.nemesis, clock=self.clock)
        self.disk = MemoryDisk(self.clock)

    # ---- clocks and ids

    def clock(self) -> float:
        """Seconds since 1970; stands still unless the story moves it."""
        return self.now_s

    def tick(self) -> float:
        """A clock for time-outs, which goes on a little each time that it is read."""
        self._ticks += 1
        return self.now_s + self._ticks / 1000

    def nonce(self) -> bytes:
        """16 bytes that were never given before."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def new_id(self) -> str:
        """The same in hex."""
        return self.nonce().hex()

    # ---- who plays

    def play(self, name: str, scene: Callable[[Process], None]) -> None:
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

    # ---- what is told

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
