"""A new writer opens while the old one is at work: at every step of the one, at every step of the other.

Whatever the order, the old writer is told at its next commit, nothing of it appears that it was not told to be
committed, and what the new one sees when it has opened is final for its partitions.
"""

import random
import warnings
from collections.abc import Iterable
from itertools import chain, cycle

import pytest

from statelog.recovery.recover import recover
from tests.sim.actors import Actor
from tests.sim.plays.takeover import Takeover

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
    """Let the old (0) and the new writer (1) take their turns, then both end. Returns the steps of each."""
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
    """At most so many steps; no more once the actor is over, or the old writer has nothing to do but wait."""
    for taken in range(count):
        if actor.over or (taken and takeover.done and takeover.new_epoch < 0):
            return taken
        actor.step()
    return count


def _check(takeover: Takeover) -> None:
    """The properties of every takeover."""
    assert takeover.fenced, "the old writer was never told"
    assert all(offset < takeover.new_epoch for offset in takeover.told), "told of a commit behind the Open"
    assert takeover.commits_behind() <= 1, "the old writer went on after it could know"
    last = takeover.seen.get("old")
    assert (last.offset if last else -1) == max(takeover.told, default=-1), "the new writer's view was not final"
    with takeover.open() as log:
        groups = log.descriptor.key_groups_in(takeover.new_partitions)
        assert recover(log, key_groups=groups).to_dict() == takeover.state, "the state moved after the Open"
        state = recover(log).to_dict()
    assert set(state.values()) == {b"old %d" % len(takeover.told)} - {b"old 0"}, (
        "a change appeared that was not committed, or one that was is missing"
    )


def _take_over(old: Partitions, name: str, partitions: Partitions, turns: Iterable[tuple[int, int]]) -> tuple[int, int]:
    takeover = Takeover(old, name, partitions)
    turns = list(turns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The old writer closes with changes that nobody committed.
        try:
            steps = _interleave(takeover, turns)
            _check(takeover)
        except BaseException as error:
            error.add_note(f"turns {turns}")
            raise
    return steps


@MEETINGS
def test_takeover_at_every_step(old: Partitions, name: str, partitions: Partitions) -> None:
    """The new writer opens between any two calls of the old one."""
    old_steps, _ = _take_over(old, name, partitions, [(0, _MANY), (1, _MANY)])
    assert old_steps > 10
    for before in range(old_steps):
        _take_over(old, name, partitions, [(0, before), (1, _MANY)])


@MEETINGS
def test_old_writer_goes_on_at_every_step_of_the_takeover(old: Partitions, name: str, partitions: Partitions) -> None:
    """The old one commits between any two calls of the new one, so that its Open may be void and is tried again."""
    _, new_steps = _take_over(old, name, partitions, [(1, _MANY), (0, _MANY)])
    assert new_steps > 5
    for before in range(new_steps):
        _take_over(old, name, partitions, [(1, before), (0, _MANY)])


@MEETINGS
def test_takeover_in_any_order(old: Partitions, name: str, partitions: Partitions) -> None:
    """Both move a few calls at a time, in random turns."""
    for seed in range(12):
        rng = random.Random(seed)
        _take_over(old, name, partitions, [(rng.randrange(2), rng.randint(1, 6)) for _ in range(100)])


@pytest.mark.soak
@pytest.mark.timeout(0)
@MEETINGS
def test_takeover_in_any_order_for_long(old: Partitions, name: str, partitions: Partitions) -> None:
    """The same, over far more turns."""
    for seed in range(1000, 6000):
        rng = random.Random(seed)
        _take_over(old, name, partitions, [(rng.randrange(2), rng.randint(1, 6)) for _ in range(100)])
