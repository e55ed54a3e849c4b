"""Recovery equals a naive fold of the history, whatever writers, snapshots and truncation did."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import NotFound
from statelog.reading.plan import AtCheckpoint, AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from tests.sim.plays.history import history_world

_seeds = st.integers(0, 2**32)
_steps = st.integers(0, 30)


@settings(deadline=None, max_examples=60)
@given(seed=_seeds, steps=_steps, fold_bytes=st.sampled_from([1, 1000, 1 << 20]))
def test_recovery_is_the_naive_fold(seed: int, steps: int, fold_bytes: int) -> None:
    """The newest state, as a dict and as a table in and out of order, is the history applied change by change."""
    world = history_world(seed, steps)
    rig = world.rig
    recovery = recover(rig.log, settings=RecoverySettings(fold_bytes=fold_bytes))
    expected = rig.state_at(rig.end())
    assert recovery.to_dict() == expected
    rows = sorted((rig.key_group(key), key, value) for key, value in expected.items())
    loose, ordered = recovery.to_arrow(), recovery.to_arrow(ordered=True)
    assert sorted(zip(*(loose.column(i).to_pylist() for i in range(3)), strict=True)) == rows
    assert list(zip(*(ordered.column(i).to_pylist() for i in range(3)), strict=True)) == rows
    assert recovery.position == rig.end()
    assert list(rig.log.store.list("leases/")) == []


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, picks=st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_any_retained_position_can_be_recovered(seed: int, steps: int, picks: list[float]) -> None:
    """Every position from the oldest retained one to the end gives its state; none below does."""
    world = history_world(seed, steps)
    rig, end = world.rig, world.rig.end()
    for pick in picks:
        position = world.oldest + round(pick * (end - world.oldest))
        assert recover(rig.log, at=AtPosition(position)).to_dict() == rig.state_at(position)
    for position in (world.oldest - 1, end + 1):
        if position >= 0:
            try:
                recover(rig.log, at=AtPosition(position))
            except NotFound as error:
                assert error.facts["oldest_position"] == world.oldest
                assert error.facts["newest_position"] == end
            else:
                raise AssertionError(f"position {position} was recovered")


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps)
def test_a_checkpoint_is_the_position_behind_its_commit(seed: int, steps: int) -> None:
    """Every retained checkpoint of every writer is found, and its state is the one right behind its commit."""
    world = history_world(seed, steps)
    rig = world.rig
    for commit in rig.history:
        at = AtCheckpoint(commit.writer, commit.checkpoint_id)
        if commit.position < world.oldest:
            continue
        recovery = recover(rig.log, at=at)
        assert recovery.position == commit.position
        last = recovery.last_commit(commit.writer)
        assert last is not None
        assert last.checkpoint.id == commit.checkpoint_id
        assert recovery.to_dict() == rig.state_at(commit.position)


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, groups=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_key_group_subsets_add_up(seed: int, steps: int, groups: list[int]) -> None:
    """Each set of key groups gives exactly its keys, and disjoint sets add up to the whole."""
    world = history_world(seed, steps)
    rig, end = world.rig, world.rig.end()
    whole: dict[Any, Any] = {}
    for part in range(3):
        wanted = [group for group, owner in enumerate(groups) if owner == part]
        found = recover(rig.log, key_groups=wanted).to_dict()
        assert found == rig.state_at(end, wanted)
        assert not whole.keys() & found.keys()
        whole.update(found)
    assert whole == rig.state_at(end)
