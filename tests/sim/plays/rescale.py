"""A job that counts events and is restarted with any number of workers, on the twins; and the model of its state.

Every partition of the log has a source of its own: an endless list of events over the keys of that partition. A worker
takes a share of the partitions, opens a writer on them and restores their key groups. It finds the source positions in
the commits of the partitions' earlier owners, and goes on counting. A lost event or one counted twice shows in the
values. Workers that are left running are not stopped: they are zombies, which find out for themselves.

docs/key-groups.md has the rules of such a job for positions; `Care` leaves a part of them out.
"""

import random
from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from itertools import islice
from pathlib import Path

from statelog.environment import Environment
from statelog.errors import Fenced
from statelog.materializer.round import run_round
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import KeyType, key_group_of, share
from statelog.schemas.ledger.state import LastCommit
from statelog.testing import Crash
from tests.support.rigs.log import TwinLog, keys_in, settings_for

__all__ = ["KEY_GROUPS", "PARTITIONS", "Care", "RescaleWorld", "Worker", "first_key"]

PARTITIONS = 5
KEY_GROUPS = 8  # As TwinLog gives its logs.
POISON = b"written by somebody who was replaced"
SMALL = WriterSettings(
    in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=3, list_bytes=64, roll_bytes=128, chunk_bytes=64)
)

Counts = dict[bytes, bytes]


class Care(Enum):
    """How careful a job is about the positions of its sources."""

    FULL = auto()
    """It takes the furthest position in any writer's last commit, and every commit carries all positions it knows."""
    OWN_COMMIT_ONLY = auto()
    """A writer checks no other writer's last commit."""
    OWN_PARTITIONS_ONLY = auto()
    """A commit carries the positions of the writer's present partitions and forgets its former ones."""


def _furthest(commits: Mapping[str, LastCommit]) -> dict[int, int]:
    """Return the position of every partition: the furthest that any writer committed."""
    return {p: max((int(c.metadata.get(str(p), 0)) for c in commits.values()), default=0) for p in range(PARTITIONS)}


@cache
def _keys(partition: int) -> list[bytes]:
    """Return the keys that live in a partition."""
    return list(islice(keys_in(partition, PARTITIONS, KEY_GROUPS), 8))


def first_key(partition: int) -> bytes:
    """Return a key of a partition."""
    return _keys(partition)[0]


def _event(partition: int, position: int) -> tuple[bytes, bool]:
    """Return a key of the partition, and whether its count starts over."""
    rng = random.Random(f"{partition}/{position}")
    return rng.choice(_keys(partition)), rng.random() < 0.15


def count(state: Counts, partition: int, start: int, end: int) -> set[bytes]:
    """Count the events of a partition from `start` up to `end`; return the keys that changed."""
    changed: set[bytes] = set()
    for position in range(start, end):
        key, over = _event(partition, position)
        if over:
            state.pop(key, None)
        else:
            state[key] = b"%d" % (int(state.get(key, b"0")) + 1)
        changed.add(key)
    return changed


class Worker:
    """One incarnation of a worker: it counts the events of its share of partitions until it dies or is fenced."""

    def __init__(self, world: "RescaleWorld", number: int, workers: int) -> None:
        self.number, self.workers = number, workers
        self.partitions = share(PARTITIONS, worker=number, workers=workers)
        self.is_fenced = False
        self.dies_at = ""
        self._world = world
        self._log = world.twin.open()
        self.writer = Environment(crash=self._crash).run(
            Writer,
            self._log,
            f"job-{number}",
            partitions=self.partitions,
            settings=SMALL,
        )
        recovery = recover(self._log, key_groups=self._log.descriptor.key_groups_in(self.partitions))
        self.state: Counts = recovery.to_dict()
        self.positions = _furthest(self._seen(recovery.commits))

    def after(self, events: int) -> dict[int, int]:
        """Return the positions of its partitions after so many more events of each."""
        return {partition: self.positions[partition] + events for partition in self.partitions}

    def step(self, events: int) -> None:
        """Count so many events of each partition and commit. Raises Fenced, or Crash at the point that was set."""
        ends = self.after(events)
        changed = {key for p, end in ends.items() for key in count(self.state, p, self.positions[p], end)}
        for key in sorted(changed):
            self._write(key)
        self.positions |= ends
        last = self.writer.last_commit
        self.writer.commit(self._metadata(), checkpoint_id=last.checkpoint.id + 1 if last else 1)

    def _seen(self, commits: Mapping[str, LastCommit]) -> Mapping[str, LastCommit]:
        if self._world.care is not Care.OWN_COMMIT_ONLY:
            return commits
        return {name: commit for name, commit in commits.items() if name == self.writer.name}

    def _metadata(self) -> dict[str, str]:
        known = self.partitions if self._world.care is Care.OWN_PARTITIONS_ONLY else self.positions
        return {str(partition): str(self.positions[partition]) for partition in known}

    def _write(self, key: bytes) -> None:
        if self.is_fenced:
            self.writer.put(key, POISON)
        elif key in self.state:
            self.writer.put(key, self.state[key])
        else:
            self.writer.delete(key)

    def _crash(self, point: str) -> None:
        if point == self.dies_at:
            raise Crash(point)


class RescaleWorld:
    """The log, the present workers, the former ones, and the expected state."""

    def __init__(self, scratch: Path, care: Care = Care.FULL) -> None:
        self.care = care
        self.twin = TwinLog(partitions=PARTITIONS)
        self.workers: list[Worker] = []
        self.zombies: list[Worker] = []
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self._settings = settings_for(scratch, fanout=2)

    @property
    def model(self) -> dict[int, Counts]:
        """The state of each partition after the committed events."""
        model: dict[int, Counts] = {partition: {} for partition in range(PARTITIONS)}
        for partition, end in self.committed.items():
            count(model[partition], partition, 0, end)
        return model

    # ---- events

    def open(self, number: int, workers: int) -> None:
        """Start a worker, and check that it begins exactly at the positions that were left."""
        worker = Worker(self, number, workers)
        for other in [*self.workers, *self.zombies]:
            if other.number == number or set(other.partitions) & set(worker.partitions):
                other.is_fenced = True
        assert worker.after(0) == {p: self.committed[p] for p in worker.partitions}, (
            "a position differs from the one that was left"
        )
        model = self.model
        assert worker.state == {key: value for p in worker.partitions for key, value in model[p].items()}
        self.workers.append(worker)

    def leave(self, worker: Worker) -> None:
        """Forget a worker without stopping it."""
        self.workers.remove(worker)
        self.zombies.append(worker)

    def step(self, worker: Worker, events: int, dies_at: str = "") -> None:
        """Step any worker. It succeeds, learns that it was fenced, or dies; nothing else happens."""
        worker.dies_at = dies_at
        ends = worker.after(events)
        try:
            worker.step(events)
        except Crash as died:
            self._bury(worker)
            if str(died) != "committed":
                return
        except Fenced:
            self._bury(worker)
            assert worker.is_fenced, "a worker was fenced, and nobody had replaced it"
            return
        assert not worker.is_fenced, "a replaced worker's commit was acknowledged"
        self.committed |= ends

    def round(self) -> None:
        """Run one round of the materializer, with truncation."""
        self.twin.now_s += 1.0
        with self.twin.open() as log:
            self.twin.environment.run(run_round, log, self._settings)

    def read(self, readers: int) -> None:
        """Restore a share of the key groups by each of so many readers, of one state; together they hold the model."""
        with self.twin.open() as log, recover(log, key_groups=()) as first:
            at = AtPosition(first.position)
            restored: Counts = {}
            for reader in range(readers):
                mine = share(KEY_GROUPS, worker=reader, workers=readers)
                part: Counts = recover(log, key_groups=mine, at=at).to_dict()
                assert all(key_group_of(key, KeyType.BYTES, KEY_GROUPS) in mine for key in part)
                restored |= part
        assert restored == {key: value for part in self.model.values() for key, value in part.items()}

    def _bury(self, worker: Worker) -> None:
        for group in (self.workers, self.zombies):
            if worker in group:
                group.remove(worker)
