"""Committed changes between two positions equal the history, however the range lies and however it is cut."""

import pickle
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import NotFound
from statelog.reading.plan import CARRIED, AtCheckpoint, AtPosition, Plan
from statelog.reading.planner import plan_changes
from statelog.recovery.changes import read_changes, split_changes
from tests.sim.plays.history import HistoryWorld, history_world
from tests.support.rigs.history import HistoryRig

_seeds = st.integers(0, 2**32)
_steps = st.integers(0, 30)
_picks = st.tuples(st.floats(0, 1), st.floats(0, 1))
Row = tuple[Any, ...]


def _expected(rig: HistoryRig, start: int, end: int, key_groups: Iterable[int] | None = None) -> dict[int, list[Row]]:
    """Return by key group the changes of the commits between two positions, in order."""
    wanted = None if key_groups is None else set(key_groups)
    rows: dict[int, list[Row]] = {}
    for commit in rig.history:
        for key, value in commit.changes if start < commit.position <= end else ():
            group = rig.key_group(key)
            if wanted is None or group in wanted:
                row = (key, int(value is None), value, commit.writer, commit.checkpoint_id, commit.position)
                rows.setdefault(group, []).append(row)
    return rows


def _read(rig: HistoryRig, plans: Iterable[Plan]) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    for plan in plans:
        for batch in read_changes(rig.log, pickle.loads(pickle.dumps(plan))):
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            names = ("key", "op", "value", "writer", "checkpoint", "position")
            for group, *row in zip(columns["key_group"], *(columns[name] for name in names), strict=True):
                rows.setdefault(group, []).append(tuple(row))
    return rows


def _range(world: HistoryWorld, picks: tuple[float, float]) -> tuple[int, int]:
    end = world.rig.end()
    first, last = sorted(world.oldest + round(pick * (end - world.oldest)) for pick in picks)
    return first, last


@settings(deadline=None, max_examples=80)
@given(seed=_seeds, steps=_steps, picks=_picks, tasks=st.integers(1, 5), whole=st.booleans())
def test_parts_of_any_range_add_up_to_the_history(
    seed: int, steps: int, picks: tuple[float, float], tasks: int, whole: bool
) -> None:
    """The parts of a plan have every change of the range once, with its commit; whole key groups in commit order."""
    world = history_world(seed, steps)
    rig, (start, end) = world.rig, _range(world, picks)
    plan = plan_changes(rig.log, AtPosition(start), AtPosition(end))
    parts = split_changes(plan, tasks, least_bytes=1, whole_key_groups=whole)
    assert len(parts) <= tasks
    assert sum(part.changes for part in parts) == plan.changes == sum(facts.changes for facts in plan.commits)
    assert sum(part.size_bytes for part in parts) == plan.size_bytes == sum(one.size_bytes for one in plan.commits)
    found, expected = _read(rig, parts), _expected(rig, start, end)
    if not whole:
        found, expected = ({group: sorted(rows, key=repr) for group, rows in one.items()} for one in (found, expected))
    assert found == expected
    if whole:
        owned = [partition for part in parts for partition in part.spans if partition != CARRIED]
        assert len(owned) == len(set(owned))
    assert list(rig.log.store.list("leases/")) == []


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, picks=_picks, groups=st.sets(st.integers(0, 7)))
def test_key_groups_of_a_range(seed: int, steps: int, picks: tuple[float, float], groups: set[int]) -> None:
    """Some key groups give exactly their changes, and no partition without one of them is read."""
    world = history_world(seed, steps)
    rig, (start, end) = world.rig, _range(world, picks)
    plan = plan_changes(rig.log, AtPosition(start), AtPosition(end), key_groups=groups)
    assert _read(rig, [plan]) == _expected(rig, start, end, groups)
    assert set(plan.spans) - {CARRIED} <= {
        rig.partition(b"key-%d" % i) for i in range(40) if rig.key_group(b"key-%d" % i) in groups
    }


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps)
def test_ranges_between_checkpoints(seed: int, steps: int) -> None:
    """A range between two retained checkpoints has the commits behind the first, up to the second."""
    world = history_world(seed, steps)
    rig = world.rig
    held = [commit for commit in rig.history if commit.position >= world.oldest]
    for first, last in zip(held, held[2:], strict=False):
        start, end = (AtCheckpoint(one.writer, one.checkpoint_id) for one in (first, last))
        plan = plan_changes(rig.log, start, end)
        assert (plan.start_position, plan.position) == (first.position, last.position)
        assert [facts.position for facts in plan.commits] == [
            one.position for one in held if first.position < one.position <= last.position
        ]


@settings(deadline=None, max_examples=40)
@given(seed=_seeds, steps=_steps, pick=st.floats(0, 1))
def test_what_was_truncated_says_what_is_held(seed: int, steps: int, pick: float) -> None:
    """The oldest start is the oldest snapshot's position, or 0; a start below it or an end above is refused with both.

    A fold that was retained below all snapshots serves as long as the topics reach back.
    """
    world = history_world(seed, steps)
    rig, end = world.rig, world.rig.end()
    oldest = plan_changes(rig.log)
    assert (oldest.start_position, oldest.position) == (world.oldest, end)
    assert _read(rig, [oldest]) == _expected(rig, world.oldest, end)
    for bad in ([AtPosition(world.oldest - 1)] if world.oldest else []) + [AtPosition(end + 1)]:
        with pytest.raises(NotFound) as caught:
            plan_changes(rig.log, bad)
        assert caught.value.facts["oldest_position"] == world.oldest
        assert caught.value.facts["newest_position"] == end
    if not rig.manifests:
        return
    start = rig.manifests[0].position + round(pick * (end - rig.manifests[0].position))
    with rig.log.replay(rig.manifests[0], start) as ledger:
        kept = ledger.folded
    for manifest in list(rig.manifests[:-1]):
        rig.drop(manifest)
    plan = plan_changes(rig.log, AtPosition(start), base=kept)
    assert _read(rig, [plan]) == _expected(rig, start, end)
