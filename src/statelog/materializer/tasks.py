"""Tasks: the work of a round, cut into parts that can be done anywhere and concurrently. Pure, and they pickle.

A task names its inputs, and the range that its runs cover. Its work needs nothing else but the log.

Invariants:
- The tasks of one fold, and those of one merge, tile the range that they cover: no overlap, no gap.
- A fold is cut between partitions that have changes, a merge between key groups: no task is empty.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.snapshot.run_ref import Cuts, Merge, RunRef, cut_points, expected_run, is_expected, newest_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutput:
    """The range that the runs of a task cover together, and how they are written. `key_groups` has step 1."""

    start_position: int
    end_position: int
    key_groups: range
    level: int
    value_schema_id: int
    drop_deletes: bool
    cuts: Cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Runs to write, with the last change of every key in the output's key groups.

    The inputs are `runs`, in manifest order, and, newer than those, the `replay` of some partitions.
    """

    output: TaskOutput
    runs: tuple[RunRef, ...] = ()
    replay: ReplayPlan | None = None


def fold_tasks(
    plan: ReplayPlan, starts: Sequence[int], runs: Sequence[RunRef], output: TaskOutput, most_tasks: int
) -> tuple[Task, ...]:
    """Cut the replay of a plan, which is not empty, into at most `most_tasks` tasks of about equal bytes.

    `starts` are the first key group of each partition, `runs` the older runs, and `output` covers all key groups.
    """
    parts = _parts(plan.sizes, most_tasks)
    firsts = [output.key_groups.start, *(starts[part[0]] for part in parts[1:])]
    ranges = _ranges(firsts, output.key_groups.stop)
    return tuple(
        Task(output=_covering(output, key_groups, runs), replay=plan.only(part))
        for part, key_groups in zip(parts, ranges, strict=True)
    )


def merge_tasks(
    merge: Merge,
    starts: Sequence[int],
    runs: Sequence[RunRef],
    delta: TaskOutput,
    most_tasks: int,
    replay: ReplayPlan | None = None,
) -> tuple[Task, ...]:
    """Cut a merge into at most `most_tasks` tasks of about equal bytes.

    starts  the first key group of each partition. Like a fold, a merge is cut between partitions; within them only if
            there are fewer partitions than tasks, and nothing is replayed
    runs    all runs of the snapshot
    delta   the output whose settings the merged runs share
    replay  is merged in place of the runs that are only expected
    """
    by_key_group = _bytes_by_key_group(merge.runs)
    by_partition: dict[int, int] = {}
    for key_group, size_bytes in by_key_group.items():
        first = max(merge.key_groups.start, starts[bisect_right(starts, key_group) - 1])
        by_partition[first] = by_partition.get(first, 0) + size_bytes
    sizes = by_partition if replay or len(by_partition) >= most_tasks else by_key_group
    output = replace(
        delta,
        start_position=merge.positions.start,
        end_position=merge.positions.stop,
        level=merge.level,
        drop_deletes=merge.drops_deletes,
    )
    firsts = [merge.key_groups.start, *(part[0] for part in _parts(sizes, most_tasks)[1:])]
    return tuple(
        Task(
            output=_covering(output, key_groups, runs),
            runs=tuple(run for run in merge.runs if not is_expected(run)),
            replay=_within(replay, starts, key_groups),
        )
        for key_groups in _ranges(firsts, merge.key_groups.stop)
    )


def expected_deltas(plan: ReplayPlan, folds: Sequence[Task], runs: Sequence[RunRef]) -> tuple[RunRef, ...]:
    """Return the runs that the folds of a plan are expected to write; none if `runs` has no delta to judge by.

    Together they are as large as the newest delta, but not larger than the replay. If that is too small, too few runs
    are merged with them, and the next round merges the rest. The bottom run is ignored: a first round may have rolled
    up a whole state.
    """
    newest = newest_bytes((run for run in runs if run.start_position), 0)
    if newest is None:
        return ()
    share = min(1.0, newest / max(1, plan.size_bytes))
    return tuple(
        expected_run(
            range(fold.output.start_position, fold.output.end_position),
            fold.output.key_groups,
            level=0,
            name=f"delta{number}",
            size_bytes=int(fold.replay.size_bytes * share) if fold.replay else 0,
        )
        for number, fold in enumerate(folds)
    )


def _covering(output: TaskOutput, key_groups: range, runs: Sequence[RunRef]) -> TaskOutput:
    points = cut_points(runs, key_groups.start, key_groups.stop, output.end_position)
    return replace(output, key_groups=key_groups, cuts=replace(output.cuts, at=points))


def _ranges(firsts: Sequence[int], end: int) -> list[range]:
    return [range(*bounds) for bounds in zip(firsts, [*firsts[1:], end], strict=True)]


def _within(plan: ReplayPlan | None, starts: Sequence[int], key_groups: range) -> ReplayPlan | None:
    """Return the part of a plan for the partitions that begin within these key groups; None if that is empty."""
    mine = [partition for partition in plan.sizes if starts[partition] in key_groups] if plan else []
    return plan.only(mine) if plan and mine else None


def _parts(sizes: Mapping[int, int], most: int) -> list[list[int]]:
    """Return the keys in order, in one to `most` parts of about equal size, none of them empty."""
    parts: list[list[int]] = [[]]
    total = max(1, sum(sizes.values()))
    for key, before in zip(sizes, accumulate(sizes.values(), initial=0), strict=False):
        if parts[-1] and before * most >= len(parts) * total:
            parts.append([])
        parts[-1].append(key)
    return parts


def _bytes_by_key_group(runs: Sequence[RunRef]) -> dict[int, int]:
    """Return about how many bytes of the runs each key group has, for the key groups that they hold, in order."""
    sizes = np.zeros(MAX_KEY_GROUPS, np.int64)
    held = np.zeros(MAX_KEY_GROUPS, np.bool_)
    for run in runs:
        for span in run.index.row_groups:
            groups = slice(span.first_key_group, span.end_key_group)
            sizes[groups] += max(1, span.size_bytes // (span.end_key_group - span.first_key_group))
            held[groups] = True
    return {int(key_group): int(sizes[key_group]) for key_group in np.flatnonzero(held)}
