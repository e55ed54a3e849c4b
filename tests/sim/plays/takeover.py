"""Two writers over the same partitions on the twins, cut into steps at every call of Kafka, and what each was told.

The old writer commits a few times and is never asked to stop; the new one opens meanwhile. Both run the real code on
threads of which one moves at a time, so a test decides who does what before whom, call by call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statelog.environment import Environment
from statelog.errors import Fenced
from statelog.producer.writer import Writer
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.records import Commit, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.storage.log.log import Log
from tests.sim.actors import Actor
from tests.sim.nemesis import Nemesis
from tests.sim.world import World
from tests.support.rigs.log import TwinLog

__all__ = ["Takeover"]

COMMITS = 2
_KEYS = tuple(b"k%d" % i for i in range(8))


_STEPS = ("offsets", "poll", "read")
"""Every call that reaches the cluster. What is sent reaches it when it is polled for."""


def _world() -> World:
    return World(Path(), Nemesis({}), twin=TwinLog(partitions=2), steps=_STEPS)


@dataclass(slots=True)
class Takeover:
    """One history: a writer "old" on some partitions, which meets a new one by the partitions or by the name."""

    old_partitions: tuple[int, ...]
    new_name: str
    new_partitions: tuple[int, ...]
    world: World = field(default_factory=_world)
    told: list[int] = field(default_factory=list[int])
    """Ledger offsets of the old writer's commits, as it was told them."""
    fenced: bool = False
    done: bool = False
    """Whether the old writer has committed all that it wanted to, and waits for the new one."""
    old_epoch: int = -1
    new_epoch: int = -1
    seen: Mapping[str, LastCommit] = field(default_factory=dict[str, LastCommit])
    """The last commits of all writers right after the new one opened."""
    state: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """What the new writer restored after it opened."""

    def actors(self) -> tuple[Actor, Actor]:
        """The old writer, open and about to append, and the new one, about to open."""
        old, new = self.world.stepper.actor(self._old), self.world.stepper.actor(self._new)
        while self.old_epoch < 0:
            old.step()
        return old, new

    def open(self) -> Log:
        """The log, for an observer who is never stopped."""
        assert self.world.twin is not None
        return self.world.twin.open()

    def commits_behind(self) -> int:
        """How many commits of the old epoch lie in the ledger behind the new writer's Open."""
        records = self.world.cluster.records(f"{self.world.name}.ledger", 0)
        found = [decode(record.value) for record in records if record.offset > self.new_epoch]
        return sum(isinstance(record, Commit) and record.epoch == self.old_epoch for record in found)

    def _old(self) -> None:
        log = self.world.process("old").open()
        writer = Environment(clock=self.world.clock).run(Writer, log, "old", partitions=self.old_partitions)
        mine = log.descriptor.key_groups_in(self.old_partitions)
        keys = [key for key in _KEYS if key_group_of(key, log.descriptor.key_type, log.descriptor.key_groups) in mine]
        self.old_epoch = writer.grant.epoch
        self.world.stepper.pause()
        try:
            for checkpoint_id in range(1, COMMITS + 1):
                for key in keys:
                    writer.put(key, b"old %d" % checkpoint_id)
                self.told.append(writer.commit(checkpoint_id, {"position": str(checkpoint_id)}).offset)
            self.done = True
            while self.new_epoch < 0:
                self.world.stepper.pause()
            writer.put(keys[0], b"too late")
            writer.commit(COMMITS + 1)
        except Fenced:
            self.fenced = True
        writer.close()

    def _new(self) -> None:
        log = self.world.process("new").open()
        writer = Environment(clock=self.world.clock).run(Writer, log, self.new_name, partitions=self.new_partitions)
        self.seen = log.commits()
        groups = log.descriptor.key_groups_in(self.new_partitions)
        self.state = recover(self.open(), key_groups=groups, at=AtPosition(writer.grant.epoch + 1)).to_dict()
        self.new_epoch = writer.grant.epoch
        writer.close()
