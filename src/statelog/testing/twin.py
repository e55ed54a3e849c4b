"""`Twin`: a whole place for logs in memory: a Kafka cluster, a store, a clock that stands still, consumer groups; and
`environment`, the door through which a clock of a test, and its crash points, reach the code.

    twin = Twin()
    with twin.environment():
        with statelog.table("counts", twin.where(), create=True) as counts:
            ...

What a program does there is what it does on a real cluster, in milliseconds, and the same every time. Owns nothing
outside of this process.

A group gives every member its fair share by itself. A test that decides itself says who has what with `give`, at any
time, and its members may hear of it late, or wrongly. What a group may do is what Kafka and its client do: give a
partition to a member while the one before still works on it, call a loss a revocation, take a partition and give it
back within one poll, say nothing for long, and refuse to answer.

An object keeps the environment that it was made in:

    with environment(clock=StillClock(), crash=crash_at("sent")):
        writer = Writer(log, "web")  # lives by this clock, and dies behind that step
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from statelog.environment import CURRENT, CrashPoint, Environment, current_environment
from statelog.kafka.group import GroupListener, Taken
from statelog.kafka.port import TopicSpec
from statelog.log import Where
from statelog.log.where import ONE_BROKER
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, FaultHook, MemoryDisk, MemoryStore, no_store_faults

_IDLE_S = 5.0
_LOOK_S, _OPENING_LOOKS = 0.001, 500
"""While tables are opened, the clock stands still so many looks: how long it really takes is nothing that tests see."""


@dataclass(slots=True)
class MemoryGroup:
    """The coordinator of a group on one topic. Members fetch `batch` messages at once; `shares`: it decides itself."""

    cluster: MemoryCluster
    topic: str
    batch: int = 1
    shares: bool = False
    owner: dict[int, "MemoryMember | None"] = field(default_factory=dict[int, "MemoryMember | None"])
    published: dict[int, int] = field(default_factory=dict[int, int])
    members: list["MemoryMember"] = field(default_factory=list["MemoryMember"])

    @property
    def ends(self) -> list[int]:
        """The log end of each partition."""
        found = self.cluster.describe(self.topic)
        return [self.cluster.log(self.topic, one).end for one in range(found.partitions if found else 0)]

    def give(self, partition: int, to: "MemoryMember | None", *, waits: bool) -> None:
        """Make a partition another member's. `waits`: once its owner has given it up; else that is told it was lost."""
        was = self.owner.get(partition)
        if was is to:
            return
        self.owner[partition] = to
        if was is not None and waits:
            was.tell("revoked", partition, then=lambda: self._assign(partition, to))
            return
        if was is not None:
            was.tell("lost", partition)
        self._assign(partition, to)

    def share(self) -> None:
        """Give every member its part, if the group decides that."""
        if self.shares and self.members:
            for partition in range(len(self.ends)):
                self.give(partition, self.members[partition % len(self.members)], waits=True)

    def _assign(self, partition: int, to: "MemoryMember | None") -> None:
        if to is not None and self.owner.get(partition) is to:
            to.tell("assigned", partition)


class MemoryMember:
    """One member; implements `GroupMember`. With nothing to give it calls `idle` with how long it may wait."""

    def __init__(self, group: MemoryGroup, listener: GroupListener, idle: Callable[[float], None]) -> None:
        self._group = group
        self._listener = listener
        self._idle = idle
        self._batch: deque[tuple[int, int]] = deque()
        self._told: deque[tuple[str, int, Callable[[], None]]] = deque()
        self.places: dict[int, int] = {}
        self.given: set[int] = set()
        self.is_deaf = False
        """Whether it hears nothing of the group for now: it is stopped, or cut off."""
        self.calls_losses_revocations = False
        group.members.append(self)
        group.share()

    @property
    def has_all(self) -> bool:
        """Whether it reads every partition that is its own."""
        return not self._told and self.given == self.places.keys()

    def tell(self, what: str, partition: int, then: Callable[[], None] = lambda: None) -> None:
        """The group has something to say, at the next poll."""
        self._told.append((what, partition, then))

    def poll(self, timeout_s: float) -> Taken | None:
        """Everything that there is to be told, and a message of the partition that is furthest behind."""
        if not self.is_deaf:
            self._hear()
        if not self._batch:
            self._fetch()
        if not self._batch:
            for one, place in self.places.items():
                self._listener.ended(one, place)
            if timeout_s:
                self._idle(timeout_s)
        return self.at_hand()

    def at_hand(self) -> Taken | None:
        """One of those that were fetched, unless its partition is not read any more."""
        while self._batch:
            partition, offset = self._batch.popleft()
            if partition in self.places:
                self.places[partition] = offset + 1
                return self._message(partition, offset), partition, offset
        return None

    def _message(self, partition: int, offset: int) -> Message:
        cluster, topic = self._group.cluster, self._group.topic
        found = cluster.log(topic, partition).first_from(offset)
        assert found is not None, "records of an input stay"
        key, headers = cluster.extras.get((topic, partition, offset), (None, ()))
        return Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=found.value,
            headers=[*headers] or None,
            timestamp=(TIMESTAMP_CREATE_TIME, found.timestamp_ms),
        )

    def _fetch(self) -> None:
        places, ends = dict(self.places), self._group.ends
        while len(self._batch) < self._group.batch:
            left = {one: place for one, place in places.items() if place < ends[one]}
            if not left:
                return
            partition = min(left, key=lambda one: (left[one], one))
            self._batch.append((partition, places[partition]))
            places[partition] += 1

    def _hear(self) -> None:
        while self._told:
            what, partition, then = self._told.popleft()
            if what == "assigned":
                self.given.add(partition)
                self._listener.assigned([partition])
            elif what == "revoked" or self.calls_losses_revocations:
                self._listener.revoked([partition])
            else:
                self._listener.lost([partition])
            if what != "assigned":
                self.given.discard(partition)
                self.places.pop(partition, None)
            then()

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """From there on."""
        new = {one: offset for one, offset in offsets.items() if one in self.given}
        self.places.update(new)
        self._batch = deque(one for one in self._batch if one[0] not in new)

    def stop(self, partitions: Sequence[int]) -> None:
        """No more."""
        for one in partitions:
            self.places.pop(one, None)

    def is_current(self, partition: int, offset: int) -> bool:
        """Only who may hear the group is told; and only an owner that has heard everything is one."""
        assert offset >= 0
        return not self.is_deaf and not self._told and self._group.owner.get(partition) is self

    def publish(self, offsets: Mapping[int, int]) -> None:
        """What tools see from now on."""
        self._group.published.update(offsets)

    def known_end(self, partition: int) -> int | None:
        """As it is, of what is read."""
        return self._group.ends[partition] if partition in self.places else None

    def close(self) -> None:
        """Leave: what is still given is another's at once."""
        if self in self._group.members:
            self._group.members.remove(self)
            for _, _, then in self._told:
                then()
            self._told.clear()
            for partition, owner in list(self._group.owner.items()):
                if owner is self:
                    self._group.owner[partition] = None
            self._group.share()


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
        return Where(_View(self), self._store, allow_unsafe=ONE_BROKER, replication_factor=1)

    def environment(self, **parts: Any) -> AbstractContextManager[Environment]:
        """What is made in the block lives by the clock, with these `parts` of an `Environment`."""
        return environment(**{"clock": self.clock, "wait": self.clock.wait, **parts})

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Make the input of a worker. Raises AlreadyExists."""
        with self.cluster.lock:
            self.cluster.create(TopicSpec(name=topic, partitions=partitions, replication_factor=1))

    def send(
        self,
        topic: str,
        *values: bytes,
        key: bytes | None = None,
        partition: int = 0,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append messages to an input, which is made with one partition if it is not there. Their time is that of the
        clock, unless `timestamp_ms` (since 1970) says another.
        """
        time_ms = int(self.clock() * 1000) if timestamp_ms is None else timestamp_ms
        if self.cluster.describe(topic) is None:
            self.create_topic(topic)
        with self.cluster.lock:
            for value in values:
                offset = self.cluster.log(topic, partition).append(value, time_ms)
                self.cluster.extras[topic, partition, offset] = key, tuple(headers)

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
        idle_s, looks = 0.0, 0

        def idle(timeout_s: float) -> None:
            nonlocal idle_s, looks
            if not member.has_all:
                time.sleep(_LOOK_S)  # Its tables are being opened, on other threads.
                looks += 1
                if looks > _OPENING_LOOKS:  # Or one has failed, and is opened again after a pause.
                    self._twin.clock.advance(_LOOK_S)
                return
            looks = 0
            self._twin.clock.advance(timeout_s)
            idle_s += timeout_s
            if idle_s >= _IDLE_S:
                idle_s = 0.0
                self._twin.when_idle()

        member = MemoryMember(self._twin.group(group, topic), listener, idle)
        return member

    def close(self) -> None:
        """Go on."""
