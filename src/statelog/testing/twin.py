"""`Twin`: a whole place for logs in memory: a Kafka cluster, a store, a clock that stands still, consumer groups; and
`environment`, the door through which a clock of a test, and its crash points, reach the code.

    twin = Twin()
    with twin.environment():
        with statelog.table("counts", twin.where(), create=True) as counts:
            ...

What a program does there is what it does on a real cluster, in milliseconds, and the same every time. Owns nothing
outside of this process. An object keeps the environment that it was made in:

    with environment(clock=StillClock(), crash=crash_at("sent")):
        writer = Writer(log, "web")  # lives by this clock, and dies behind that step
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from statelog.environment import CURRENT, CrashPoint, Environment, current_environment
from statelog.storage.kafka import TopicSpec
from statelog.storage.kafka.group import GroupListener
from statelog.storage.log.where import ONE_BROKER, Where
from statelog.testing.cluster import MemoryCluster
from statelog.testing.group import MemoryGroup, MemoryMember
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, FaultHook, MemoryDisk, MemoryStore, no_store_faults

_IDLE_S = 5.0
_OPENING_S = 0.001


class Crash(BaseException):
    """The end of a simulated process. No code of statelog takes it for an error that it could handle."""


def crash_at(step: str, times: int = 1) -> CrashPoint:
    """A crash point that raises Crash when this step is done for the `times`-th time, and never again.

    `environment(crash=print)` shows which steps are passed: `Writer.CRASH_POINTS` and `materializer.round.CRASH_POINTS`
    name those of a writer and of a round.
    """
    left = times

    def crash(passed: str) -> None:
        nonlocal left
        left -= passed == step
        if left == 0:
            left = -1
            raise Crash(step)

    return crash


@dataclass(slots=True)
class StillClock:
    """A clock that stands still unless somebody waits, or `advance` moves it. `now_s` is in seconds since 1970."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now_s += seconds

    def wait(self, event: threading.Event, timeout_s: float) -> None:
        """Let the time pass at once, unless the event is there already."""
        if not event.is_set():
            self.advance(timeout_s)


@contextmanager
def environment(**parts: Any) -> Generator[Environment]:
    """What is made in the block, in this thread and in those begun from it, has these parts of an `Environment`.

    All others are as around it. A `clock` is both clocks, unless `wall_clock` is another.
    """
    if "clock" in parts:
        parts = {"wall_clock": parts["clock"], **parts}
    made = replace(current_environment(), **parts)
    token = CURRENT.set(made)
    try:
        yield made
    finally:
        CURRENT.reset(token)


@dataclass(slots=True, eq=False)
class Twin:
    """One simulated cluster and store. Each `where()` is another process' view of both.

    `when_idle` is called once a worker had nothing to read for five seconds of the clock, which pass at once:
    `twin.when_idle = worker.stop` ends its loop behind the last message. `store_faults` decides what becomes of each
    call of the store; `cluster` and `disk` are there to be harmed.
    """

    clock: StillClock = field(default_factory=StillClock)
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)
    store_faults: FaultHook = no_store_faults
    when_idle: Callable[[], object] = lambda: None
    _groups: dict[tuple[str, str], MemoryGroup] = field(default_factory=dict[tuple[str, str], MemoryGroup])

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(clock=self.clock)
        self.disk = MemoryDisk(self.clock)

    def where(self) -> Where:
        """Where the logs are, as one more process sees it."""
        kafka = _View(self)
        return Where(kafka, self._store, allow_unsafe=ONE_BROKER, replication_factor=1)

    def environment(self, **parts: Any) -> AbstractContextManager[Environment]:
        """What is made in the block lives by the clock, with these `parts` of an `Environment`."""
        return environment(**{"clock": self.clock, "wait": self.clock.wait, **parts})

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Make the input of a worker. Raises AlreadyExists."""
        with self.cluster.lock:
            self.cluster.create(TopicSpec(name=topic, partitions=partitions, replication_factor=1))

    def send(self, topic: str, *values: bytes, key: bytes | None = None, partition: int = 0) -> None:
        """Append messages to an input, which is made with one partition if it is not there."""
        if self.cluster.describe(topic) is None:
            self.create_topic(topic)
        with self.cluster.lock:
            for value in values:
                offset = self.cluster.log(topic, partition).append(value, int(self.clock() * 1000))
                if key is not None:
                    self.cluster.keys[topic, partition, offset] = key

    def group(self, name: str, topic: str) -> MemoryGroup:
        """A consumer group, which shares the topic's partitions among its members; by default it has the log's name."""
        return self._groups.setdefault((name, topic), MemoryGroup(self.cluster, topic, shares=True))

    def _store(self, log: str) -> MemoryStore:
        return MemoryStore(self.disk, log, faults=self._store_fault)

    def _store_fault(self, method: str, path: str) -> Fault | None:
        return self.store_faults(method, path)


class _View(MemoryKafka):
    """One process' view. Logs come and go with it, so that who closes it closes nothing."""

    def __init__(self, twin: Twin) -> None:
        super().__init__(cluster=twin.cluster)
        self._twin = twin

    def join_group(self, group: str, topic: str, listener: GroupListener) -> MemoryMember:
        """A new member; it lets the time pass while there is nothing to read."""
        idle_s = 0.0

        def idle(timeout_s: float) -> None:
            nonlocal idle_s
            if not member.has_all:
                time.sleep(_OPENING_S)  # Its tables are being opened, on other threads.
                return
            self._twin.clock.advance(timeout_s)
            idle_s += timeout_s
            if idle_s >= _IDLE_S:
                idle_s = 0.0
                self._twin.when_idle()

        member = MemoryMember(self._twin.group(group, topic), listener, idle)
        return member

    def close(self) -> None:
        """Go on."""
