"""`Twin`: a Kafka cluster, a store, a clock and consumer groups in memory; and `environment`, which gives a test's
clock and crash points to the code.

    twin = Twin()
    with twin.environment():
        with statelog.table("counts", twin.where(), create=True) as counts:
            ...

A program behaves there as on a real cluster, in milliseconds, and the same every time. Owns nothing outside of this
process.

A group gives every member a fair share by itself. A test can assign partitions with `give` instead, at any time, and
its members may learn of it late, or wrongly. A group has only the faults of Kafka and its client:

- It gives a partition to a member while the previous owner still works on it, or takes and returns one within a poll.
- It reports a loss as a revocation, is silent for long, or refuses to answer.

An object keeps the environment that it was made in:

    with environment(clock=StillClock(), crash=crash_at("sent")):
        writer = Writer(log, "web")  # uses this clock, and crashes after that step
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
from statelog.schemas.outputs.output import Output
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, FaultHook, MemoryDisk, MemoryStore, no_store_faults

_IDLE_S = 5.0
_PAUSE_S, _OPENING_PAUSES = 0.001, 500
"""While tables are opened, the clock stands still for so many pauses: tests do not depend on the real time of it."""


@dataclass(slots=True)
class MemoryGroup:
    """The coordinator of a group on one topic. `batch`: messages of a fetch. `shares`: it assigns partitions itself."""

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
        """Assign a partition to another member, or to none.

        `waits`: only after its owner has released it; otherwise the owner is notified that it lost the partition.
        """
        previous = self.owner.get(partition)
        if previous is to:
            return
        self.owner[partition] = to
        if previous is not None and waits:
            previous.tell("revoked", partition, then=lambda: self._assign(partition, to))
            return
        if previous is not None:
            previous.tell("lost", partition)
        self._assign(partition, to)

    def share(self) -> None:
        """Assign every member its share, if the group assigns partitions itself."""
        if self.shares and self.members:
            for partition in range(len(self.ends)):
                self.give(partition, self.members[partition % len(self.members)], waits=True)

    def _assign(self, partition: int, to: "MemoryMember | None") -> None:
        if to is not None and self.owner.get(partition) is to:
            to.tell("assigned", partition)


class MemoryMember:
    """One member; implements `GroupMember`. Without messages it calls `idle` with the time that it may wait."""

    def __init__(self, group: MemoryGroup, listener: GroupListener, idle: Callable[[float], None]) -> None:
        self._group = group
        self._listener = listener
        self._idle = idle
        self._batch: deque[tuple[int, int]] = deque()
        self._notices: deque[tuple[str, int, Callable[[], None]]] = deque()
        self.places: dict[int, int] = {}
        self.given: set[int] = set()
        self.is_deaf = False
        """True while it learns nothing from the group: it is stopped, or disconnected."""
        self.calls_losses_revocations = False
        group.members.append(self)
        group.share()

    @property
    def has_all(self) -> bool:
        """True if it reads every partition that it owns."""
        return not self._notices and self.given == self.places.keys()

    def tell(self, what: str, partition: int, then: Callable[[], None] = lambda: None) -> None:
        """Queue a notice of the group for the next poll."""
        self._notices.append((what, partition, then))

    def poll(self, timeout_s: float) -> Taken | None:
        """Deliver all notices, then return a message of the partition that is furthest behind."""
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
        """Return a fetched message of a partition that is still read."""
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
        is_tombstone = (topic, partition, offset) in cluster.tombstones
        key, headers = cluster.extras.get((topic, partition, offset), (None, ()))
        return Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=None if is_tombstone else found.value,
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
            found = self._group.cluster.log(self._group.topic, partition).first_from(places[partition])
            if found is not None:
                self._batch.append((partition, found.offset))
            places[partition] = ends[partition] if found is None else found.offset + 1  # Markers take offsets, too.

    def _hear(self) -> None:
        while self._notices:
            what, partition, then = self._notices.popleft()
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
        """Read these partitions from these offsets on."""
        new = {one: offset for one, offset in offsets.items() if one in self.given}
        self.places.update(new)
        self._batch = deque(one for one in self._batch if one[0] not in new)

    def stop(self, partitions: Sequence[int]) -> None:
        """Stop reading these partitions."""
        for one in partitions:
            self.places.pop(one, None)

    def is_current(self, partition: int, offset: int) -> bool:
        """Tell whether this member owns the partition. Always False while it is deaf or has undelivered notices."""
        assert offset >= 0
        return not self.is_deaf and not self._notices and self._group.owner.get(partition) is self

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Publish offsets for tools."""
        self._group.published.update(offsets)

    def known_end(self, partition: int) -> int | None:
        """Return the log end of a partition that is read; None for others."""
        return self._group.ends[partition] if partition in self.places else None

    def close(self) -> None:
        """Leave the group, which assigns the partitions to others at once."""
        if self in self._group.members:
            self._group.members.remove(self)
            for _, _, then in self._notices:
                then()
            self._notices.clear()
            for partition, owner in list(self._group.owner.items()):
                if owner is self:
                    self._group.owner[partition] = None
            self._group.share()


class Crash(BaseException):
    """The end of a simulated process. It is a BaseException, so no code of statelog handles it as an error."""


def crash_at(step: str, times: int = 1) -> CrashPoint:
    """Return a crash point that raises Crash when this step is done for the `times`-th time, and never again.

    `environment(crash=print)` prints the steps; `Writer.CRASH_POINTS` and `materializer.round.CRASH_POINTS` list those
    of a writer and of a round.
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
    """A clock that moves only by a wait, or by `advance`. `now_s` is in seconds since 1970."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move the clock by these seconds."""
        self.now_s += seconds

    def wait(self, event: threading.Event, timeout_s: float) -> None:
        """Move the clock by the time-out at once, unless the event is set already."""
        if not event.is_set():
            self.advance(timeout_s)


@contextmanager
def environment(**parts: Any) -> Generator[Environment]:
    """Give these parts of an `Environment` to objects made in the block, by this thread and by those begun from it.

    All other parts stay as outside. `clock` sets both clocks, unless `wall_clock` is given.
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

    `when_idle`: called when a worker had nothing to read for five seconds of the clock, which pass at once. With
    `worker.stop`, it ends the worker's loop after the last message.
    `store_faults`: decides the fault of each call of the store.
    `cluster`, `disk`: for faults and damage.
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
        """Return the place of the logs, as the view of one more process."""
        return Where(_View(self), self._store, allow_unsafe=ONE_BROKER, replication_factor=1)

    def environment(self, **parts: Any) -> AbstractContextManager[Environment]:
        """Give this clock, and these `parts` of an `Environment`, to objects made in the block."""
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
        """Append messages to an input, which is made with one partition if it does not exist.

        `timestamp_ms`: their time since 1970; by default that of the clock.
        """
        time_ms = int(self.clock() * 1000) if timestamp_ms is None else timestamp_ms
        if self.cluster.describe(topic) is None:
            self.create_topic(topic)
        with self.cluster.lock:
            for value in values:
                offset = self.cluster.log(topic, partition).append(value, time_ms)
                self.cluster.extras[topic, partition, offset] = key, tuple(headers)

    def outputs(self, topic: str) -> list[Output]:
        """Return the messages of a topic, partition by partition, as readers with `read_committed` see them."""
        found = self.cluster.describe(topic)
        partitions = range(found.partitions if found else 0)
        return [message for one in partitions for message in self.cluster.outputs(topic, one)]

    def group(self, name: str, topic: str) -> MemoryGroup:
        """Return a consumer group, which shares the topic's partitions among members. Workers use the log's name."""
        return self._groups.setdefault((name, topic), MemoryGroup(self.cluster, topic, shares=True))

    def _store(self, log: str) -> MemoryStore:
        return MemoryStore(self.disk, log, faults=self._store_fault)

    def _store_fault(self, method: str, path: str) -> Fault | None:
        return self.store_faults(method, path)


class _View(MemoryKafka):
    """One process' view. Closing it has no effect, because logs share it."""

    def __init__(self, twin: Twin) -> None:
        super().__init__(cluster=twin.cluster)
        self._twin = twin

    def join_group(self, group: str, topic: str, listener: GroupListener) -> MemoryMember:
        """Return a new member, which moves the clock while there is nothing to read."""
        idle_s, pauses = 0.0, 0

        def idle(timeout_s: float) -> None:
            nonlocal idle_s, pauses
            if not member.has_all:
                time.sleep(_PAUSE_S)  # Other threads are opening its tables.
                pauses += 1
                if pauses > _OPENING_PAUSES:  # Or one has failed, and is opened again after a pause of the clock.
                    self._twin.clock.advance(_PAUSE_S)
                return
            pauses = 0
            self._twin.clock.advance(timeout_s)
            idle_s += timeout_s
            if idle_s >= _IDLE_S:
                idle_s = 0.0
                self._twin.when_idle()

        member = MemoryMember(self._twin.group(group, topic), listener, idle)
        return member

    def close(self) -> None:
        """Do nothing."""
