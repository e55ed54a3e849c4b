"""A new writer opens while the old one is at work: at every step of the one, at every step of the other.

Both run the real code on threads of which one moves at a time, cut into steps at every call of Kafka. The old writer
commits a few times and is never asked to stop. In any order its next commit raises, only its acknowledged commits
appear, and the new writer's view after its Open is final for its partitions.
"""

import random
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import Fenced
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.records import Commit, decode
from statelog.schemas.ledger.state import LastCommit
from tests.sim.actors import Actor
from tests.sim.nemesis import Nemesis
from tests.sim.world import World
from tests.support.rigs.log import TwinLog

COMMITS = 2
_KEYS = tuple(b"k%d" % i for i in range(8))


_STEPS = ("offsets", "poll", "read")
"""Every call that reaches the cluster. Records reach it at a poll."""


def _world() -> World:
    return World(Path(), Nemesis({}), twin=TwinLog(partitions=2), steps=_STEPS)


@dataclass(slots=True)
class Takeover:
    """One history: a writer "old" on some partitions, and a new one in conflict by the partitions or by the name."""

    old_partitions: tuple[int, ...]
    new_name: str
    new_partitions: tuple[int, ...]
    world: World = field(default_factory=_world)
    told: list[int] = field(default_factory=list[int])
    """Ledger offsets of the old writer's acknowledged commits."""
    fenced: bool = False
    done: bool = False
    """Whether the old writer has done all its commits, and waits for the new one."""
    old_epoch: int = -1
    new_epoch: int = -1
    seen: Mapping[str, LastCommit] = field(default_factory=dict[str, LastCommit])
    """The last commits of all writers right after the new one opened."""
    state: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The state that the new writer restored after it opened."""

    def actors(self) -> tuple[Actor, Actor]:
        """Return the old writer, open and about to append, and the new one, about to open."""
        old, new = self.world.stepper.actor(self._old), self.world.stepper.actor(self._new)
        while self.old_epoch < 0:
            old.step()
        return old, new

    def open(self) -> Log:
        """Return the log, for an observer that is never stopped."""
        assert self.world.twin is not None
        return self.world.twin.open()

    def commits_behind(self) -> int:
        """Return how many commits of the old epoch lie in the ledger behind the new writer's Open."""
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
                self.told.append(writer.commit({"position": str(checkpoint_id)}, checkpoint_id=checkpoint_id).offset)
            self.done = True
            while self.new_epoch < 0:
                self.world.stepper.pause()
            writer.put(keys[0], b"too late")
            writer.commit(checkpoint_id=COMMITS + 1)
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


MEETINGS = pytest.mark.parametrize(
    ("old", "name", "partitions"),
    [
        ((0, 1), "old", (0, 1)),
        ((0, 1), "other", (0, 1)),
        ((0, 1), "other", (1,)),
        ((1,), "old", (0, 1)),
        ((0,), "old", (1,)),
    ],
)
_MANY = 10_000

Partitions = tuple[int, ...]


def _interleave(takeover: Takeover, turns: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Let the old (0) and the new writer (1) take their turns, then end both. Return the steps of each."""
    actors = takeover.actors()
    steps = [0, 0]
    try:
        for who, count in chain(turns, cycle([(0, 1), (1, 1)])):
            steps[who] += _turn(takeover, actors[who], count)
            if all(actor.over for actor in actors):
                break
    finally:
        for actor in actors:
            if actor.error is None:
                actor.kill()
    return steps[0], steps[1]


def _turn(takeover: Takeover, actor: Actor, count: int) -> int:
    """Take at most so many steps; stop when the actor is over, or the old writer has only to wait."""
    for taken in range(count):
        if actor.over or (taken and takeover.done and takeover.new_epoch < 0):
            return taken
        actor.step()
    return count


def _check(takeover: Takeover) -> None:
    """Check the properties of every takeover."""
    assert takeover.fenced, "the old writer never raised"
    assert all(offset < takeover.new_epoch for offset in takeover.told), "a commit behind the Open was acknowledged"
    assert takeover.commits_behind() <= 1, "the old writer went on after it could know"
    last = takeover.seen.get("old")
    assert (last.offset if last else -1) == max(takeover.told, default=-1), "the new writer's view was not final"
    with takeover.open() as log:
        groups = log.descriptor.key_groups_in(takeover.new_partitions)
        assert recover(log, key_groups=groups).to_dict() == takeover.state, "the state moved after the Open"
        state = recover(log).to_dict()
    assert set(state.values()) == {b"old %d" % len(takeover.told)} - {b"old 0"}, (
        "an uncommitted change appeared, or a committed one is missing"
    )


def _take_over(old: Partitions, name: str, partitions: Partitions, turns: Iterable[tuple[int, int]]) -> tuple[int, int]:
    takeover = Takeover(old, name, partitions)
    turns = list(turns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The old writer closes with uncommitted changes.
        try:
            steps = _interleave(takeover, turns)
            _check(takeover)
        except BaseException as error:
            error.add_note(f"turns {turns}")
            raise
    return steps


@MEETINGS
def test_takeover_at_every_step(old: Partitions, name: str, partitions: Partitions) -> None:
    """The new writer opens between any two calls of the old one, and the takeover is correct."""
    old_steps, _ = _take_over(old, name, partitions, [(0, _MANY), (1, _MANY)])
    assert old_steps > 10
    for before in range(old_steps):
        _take_over(old, name, partitions, [(0, before), (1, _MANY)])


@MEETINGS
def test_old_writer_goes_on_at_every_step_of_the_takeover(old: Partitions, name: str, partitions: Partitions) -> None:
    """The old writer commits between any two calls of the new one, whose Open may be void and is tried again."""
    _, new_steps = _take_over(old, name, partitions, [(1, _MANY), (0, _MANY)])
    assert new_steps > 5
    for before in range(new_steps):
        _take_over(old, name, partitions, [(1, before), (0, _MANY)])


@MEETINGS
def test_takeover_in_any_order(old: Partitions, name: str, partitions: Partitions) -> None:
    """Both writers move a few calls at a time, in random turns, and the takeover is correct."""
    for seed in range(12):
        rng = random.Random(seed)
        _take_over(old, name, partitions, [(rng.randrange(2), rng.randint(1, 6)) for _ in range(100)])


@pytest.mark.soak
@pytest.mark.timeout(0)
@MEETINGS
def test_takeover_in_any_order_for_long(old: Partitions, name: str, partitions: Partitions) -> None:
    """The takeover is correct over far more random turns."""
    for seed in range(1000, 6000):
        rng = random.Random(seed)
        _take_over(old, name, partitions, [(rng.randrange(2), rng.randint(1, 6)) for _ in range(100)])
