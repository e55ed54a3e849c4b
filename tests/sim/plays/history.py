"""A log of two writers with disjoint partitions, driven by one seed.

It has commits, dead and fenced incarnations, adopted handles, snapshots and truncation.
"""

import random
import warnings
from dataclasses import dataclass, field
from typing import Any

from statelog.errors import Fenced
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from tests.support.rigs.history import Committed, HistoryRig, history_rig

__all__ = ["HistoryWorld", "history_world"]

_TINY = WriterSettings(_tuning=WriterTuning(roll_rows=3, list_bytes=64, roll_bytes=256, chunk_bytes=96))
_NAMES: tuple[str, ...] = ("A", "B")


@dataclass
class HistoryWorld:
    """A rig with two writers whose partitions are disjoint, driven by one seed."""

    seed: int
    rig: HistoryRig = field(default_factory=history_rig)
    oldest: int = 0
    """The lowest position that is still retained."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ids: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self.writers = {name: self.open(name) for name in _NAMES}
        keys = [b"key-%d" % i for i in range(40)]
        self.keys = {n: [k for k in keys if self.rig.partition(k) in self.partitions(n)] for n in _NAMES}

    def partitions(self, name: str) -> list[int]:
        """Return a writer's own partitions."""
        return [0, 1] if name == "A" else [2]

    def open(self, name: str) -> Writer:
        """Return a new incarnation of a writer, with tiny chunks."""
        return Writer(self.rig.log, name, partitions=self.partitions(name), settings=_TINY)

    def changes(self, name: str) -> list[tuple[Any, Any]]:
        """Return some changes of keys of a writer's own, maybe none."""
        count = self.rng.choice([0, 1, 3, 12])
        found: list[tuple[Any, Any]] = []
        for _ in range(count):
            deletes = self.rng.random() < 0.3
            value = None if deletes else self.rng.randbytes(self.rng.choice([0, 4, 40]))
            found.append((self.rng.choice(self.keys[name]), value))
        return found

    def step(self) -> None:
        """Let one writer act once."""
        name = self.rng.choice(_NAMES)
        acts = [self.commit, self.commit, self.commit, self.orphan, self.fence, self.adopt, self.snapshot]
        self.rng.choice(acts)(name)

    def commit(self, name: str) -> None:
        """Commit."""
        self.ids[name] += 1
        self.rig.commit(self.writers[name], self.ids[name], self.changes(name), {"id": str(self.ids[name])})

    def orphan(self, name: str) -> None:
        """Persist and die: the chunks are in the log and count for nobody."""
        writer = self.writers[name]
        self.rig.append(writer, self.changes(name))
        writer.persist(self.ids[name] + 1).result()
        writer.close()
        self.writers[name] = self.open(name)

    def fence(self, name: str) -> None:
        """Fence a writer that commits all the same: its commit is void."""
        old = self.writers[name]
        self.writers[name] = self.open(name)
        self.rig.append(old, [(self.keys[name][0], b"from the fenced writer")])
        try:
            old.commit(checkpoint_id=self.ids[name] + 1)
        except Fenced:
            old.close()
        else:
            raise AssertionError("the fenced writer's commit was acknowledged")

    def adopt(self, name: str) -> None:
        """Persist and die; the next incarnation commits the handle."""
        old, changes = self.writers[name], self.changes(name)
        self.rig.append(old, changes)
        handle = old.persist(self.ids[name] + 1).result()
        old.close()
        self.ids[name] += 1
        self.writers[name] = self.open(name)
        position = self.writers[name].adopt(handle).offset + 1
        self.rig.history.append(Committed(position, name, self.ids[name], changes))

    def snapshot(self, _: str) -> None:
        """Put a snapshot, and maybe truncate below an older one."""
        rig = self.rig
        if rig.manifests and rig.manifests[-1].position == rig.end():
            return
        rig.snapshot(merge=self.rng.random() < 0.4)
        if len(rig.manifests) > 2 and self.rng.random() < 0.5:
            rig.drop(rig.manifests[0])
            rig.truncate(rig.manifests[0])
            self.oldest = rig.manifests[0].position
            for name in _NAMES:
                self.writers[name].close()
                self.writers[name] = self.open(name)

    def close(self) -> None:
        """Close the writers."""
        for writer in self.writers.values():
            writer.close()


def history_world(seed: int, steps: int) -> HistoryWorld:
    """Return the world after so many steps, with its writers closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Writers warn of discarded changes; here that is the point.
        world = HistoryWorld(seed)
        for _ in range(steps):
            world.step()
        world.close()
    return world
