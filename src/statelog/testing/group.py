"""A consumer group in memory: it shares the partitions of a topic of a `MemoryCluster` among its members.

By itself it gives every member its fair share. A test that decides itself says who has what with `give`, at any time,
and its members may hear of it late, or wrongly. What a group may do is what Kafka and its client do: give a partition
to a member while the one before still works on it, call a loss a revocation, take a partition and give it back within
one poll, say nothing for long, and refuse to answer.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from statelog.storage.kafka.group import GroupListener, Taken
from statelog.testing.cluster import MemoryCluster


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
        key = cluster.keys.get((topic, partition, offset))
        return Message(topic=topic, partition=partition, offset=offset, key=key, value=found.value)

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
            self._hear_nothing_more()
            self._group.share()

    def _hear_nothing_more(self) -> None:
        for _, _, then in self._told:
            then()
        self._told.clear()
        for partition, owner in list(self._group.owner.items()):
            if owner is self:
                self._group.owner[partition] = None
