"""Merges: which runs are merged, in one column of key groups and in many, and where files are cut."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import ConfigError
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.snapshot.run_ref import (
    Cuts,
    Merge,
    RunRef,
    affordable,
    check_tiles,
    choose_merges,
    cut_points,
    in_order,
    lanes,
)
from tests.support.samples.manifests import run_ref

MIB = 1024 * 1024


def _runs(*sizes_mib: float) -> list[RunRef]:
    return [replace(run_ref(f"r{i}", i, i + 1), size_bytes=max(1, int(size * MIB))) for i, size in enumerate(sizes_mib)]


def _run(name: str, positions: range, key_groups: range, size_mib: float) -> RunRef:
    made = run_ref(name, positions.start, positions.stop, max(1, int(size_mib * MIB)))
    return replace(made, first_key_group=key_groups.start, end_key_group=key_groups.stop)


def _names(merge: Merge) -> str:
    return " ".join(run.path.removeprefix("runs/").removesuffix(".parquet") for run in merge.runs)


def _merged(merge: Merge, name: str, size_bytes: int) -> RunRef:
    return replace(
        merge.runs[0],
        path=f"runs/{name}.parquet",
        start_position=merge.positions.start,
        end_position=merge.positions.stop,
        first_key_group=merge.key_groups.start,
        end_key_group=merge.key_groups.stop,
        level=merge.level,
        size_bytes=max(1, size_bytes),
    )


@pytest.mark.parametrize(
    ("sizes_mib", "merge"),
    [
        ([], ""),
        ([9, 2, 2, 2], ""),
        ([9, 2, 2, 2, 2], "r1 r2 r3 r4"),
        ([0.1, 0.1, 0.1, 0.2], "r0 r1 r2 r3"),
        ([2, 2, 2, 2, 0.1, 0.1, 0.1, 0.1], "r4 r5 r6 r7"),
        ([0.1, 0.1, 0.1, 9], "r0 r1 r2 r3"),
        ([20, 0.1, 0.1, 9, 0.1], ""),
    ],
    ids=[
        "nothing",
        "below the fanout",
        "a full tier",
        "the first tier",
        "the newest first",
        "small before large",
        "not yet",
    ],
)
def test_a_full_tier_is_merged(sizes_mib: list[float], merge: str) -> None:
    """The newest tier with four runs is merged. A run counts as at least as large as anything newer."""
    assert [_names(one) for one in choose_merges(_runs(*sizes_mib))] == ([merge] if merge else [])


def test_deletes_vanish_only_at_the_bottom() -> None:
    """A delete may hide a put in an older run, so only a merge from the first position on drops it."""
    (bottom,), (above,) = choose_merges(_runs(1, 1, 1, 1)), choose_merges(_runs(9, 2, 2, 2, 2))
    assert bottom.drops_deletes
    assert not above.drops_deletes


def test_a_hot_key_group_merges_alone() -> None:
    """Runs of one key group that fill a tier are merged, without touching bytes of other key groups."""
    below = [_run(f"base{kg.start}", range(5), kg, 900) for kg in (range(7), range(7, 8), range(8, MAX_KEY_GROUPS))]
    hot = [_run(f"hot{at}", range(at, at + 1), range(7, 8), 3) for at in range(5, 9)]
    rest = [_run(f"rest{kg.start}", range(5, 9), kg, 0.1) for kg in (range(7), range(8, MAX_KEY_GROUPS))]
    runs = in_order([*below, *hot, *rest])
    check_tiles(runs, 9)
    (merge,) = choose_merges(runs)
    assert (_names(merge), merge.drops_deletes) == ("hot5 hot6 hot7 hot8", False)


def test_columns_merge_at_the_same_time() -> None:
    """Columns of key groups whose runs are cut apart have separate merges that share no run."""
    halves = (range(50), range(50, MAX_KEY_GROUPS))
    runs = in_order(_run(f"r{at}-{kg.start}", range(at, at + 1), kg, 1) for at in range(4) for kg in halves)
    assert sorted(_names(merge) for merge in choose_merges(runs)) == ["r0-0 r1-0 r2-0 r3-0", "r0-50 r1-50 r2-50 r3-50"]
    assert all(merge.drops_deletes for merge in choose_merges(runs))


def test_a_merge_takes_what_the_rectangle_needs() -> None:
    """A run of all key groups merges with one column's runs only together with what covers its other columns."""
    wide = _run("wide", range(1), range(MAX_KEY_GROUPS), 1)
    left = [_run(f"l{at}", range(at, at + 1), range(50), 1) for at in (1, 2, 3)]
    right = [_run("right", range(1, 4), range(50, MAX_KEY_GROUPS), 0.1)]
    (merge,) = choose_merges(in_order([wide, *left, *right]))
    assert _names(merge) == "wide l1 right l2 l3"


def test_a_merge_takes_two_runs() -> None:
    """A fanout of one is refused, since it would merge for ever."""
    with pytest.raises(ConfigError):
        choose_merges([], 1)


@given(st.lists(st.floats(0.01, 300.0), max_size=60), st.integers(2, 6), st.floats(0.3, 1.0))
@settings(deadline=None)
def test_merging_bounds_the_runs_and_the_bytes_written(sizes_mib: list[float], fanout: int, kept: float) -> None:
    """A tier has at most fanout - 1 runs after each round, and each byte is rewritten about once a tier."""
    runs: tuple[RunRef, ...] = ()
    written = 0.0
    for run in _runs(*sizes_mib):
        runs = (*runs, run)
        while merges := choose_merges(runs, fanout):
            (merge,) = merges
            assert len(merge.runs) >= fanout
            size = int(sum(each.size_bytes for each in merge.runs) * kept)
            written += size
            runs = in_order([*(one for one in runs if one not in merge.runs), _merged(merge, f"m{written}", size)])
    total = sum(sizes_mib) * MIB
    tiers = 1
    while fanout ** (tiers - 1) * MIB <= total:
        tiers += 1
    assert len(runs) <= (fanout - 1) * tiers
    assert written <= 2 * tiers * (total + MIB)


def test_a_round_merges_what_it_may_and_one_merge_at_least() -> None:
    """A round makes merges in their order, as far as they fit. A required one is made whatever its size."""
    large, small, smaller = (Merge(tuple(_runs(*sizes))) for sizes in ((9, 9), (2, 2), (1, 1)))
    merges = (large, small, smaller)
    assert affordable(merges, 24 * MIB, at_least_one=True) == merges
    assert affordable(merges, 5 * MIB, at_least_one=False) == (small,)
    assert affordable(merges, 5 * MIB, at_least_one=True) == (large,)
    assert affordable(merges, 1, at_least_one=False) == ()


@pytest.mark.parametrize(("most_mib", "at_once"), [(1, 1), (1000, 8)])
def test_merges_of_a_large_state_are_spread_over_rounds(most_mib: int, at_once: int) -> None:
    """Eight columns fill up at once, and one merge a round is enough: they take turns, and no column grows."""
    columns = [range(first, first + 10) for first in range(0, 70, 10)] + [range(70, MAX_KEY_GROUPS)]
    runs = in_order([_run(f"bottom{column.start}", range(1), column, 60) for column in columns])
    most_merges, most_deep = 0, 0
    for position in range(1, 200):
        delta = [_run(f"d{position}-{column.start}", range(position, position + 1), column, 5) for column in columns]
        runs, made = in_order([*runs, *delta]), 0
        while merges := affordable(choose_merges(runs), most_mib * MIB if not made else 0, at_least_one=not made):
            for merge in merges:
                size = min(60 * MIB, merge.size_bytes)
                runs = in_order(
                    [*(run for run in runs if run not in merge.runs), _merged(merge, f"m{position}{made}", size)]
                )
                made += 1
        check_tiles(runs, position + 1)
        most_merges, most_deep = max(most_merges, made), max(most_deep, len(lanes(runs)))
    assert most_merges == at_once
    assert most_deep <= 3 * len(columns)


class _Story:
    """Random rounds that add runs and merge them. Runs tile their positions and are cut anywhere."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.runs: tuple[RunRef, ...] = ()
        self.position = self.made = 0

    def tile(self, positions: range, key_groups: range, size_mib: float) -> list[RunRef]:
        """Return runs that tile this rectangle, cut side by side."""
        inner = [cut for cut in (3, 7, 8, 20, 90) if cut in key_groups and cut > key_groups.start]
        cuts = sorted(self.rng.sample(inner, self.rng.randint(0, len(inner))))
        bounds = [key_groups.start, *cuts, key_groups.stop]
        self.made += 1
        return [
            _run(f"r{self.made}-{first}", positions, range(first, end), size_mib * self.rng.uniform(0.1, 2))
            for first, end in pairwise(bounds)
        ]

    def round(self) -> None:
        """Add one delta, then merge until there is nothing to do."""
        delta = self.tile(range(self.position, self.position + 1), range(MAX_KEY_GROUPS), self.rng.choice((0.1, 3, 40)))
        self.position += 1
        self.runs = in_order([*self.runs, *delta])
        while merges := choose_merges(self.runs, 3):
            for merge in merges:
                self.merge(merge)
            check_tiles(self.runs, self.position)

    def merge(self, merge: Merge) -> None:
        """Replace the runs of a merge by others that tile the same."""
        positions, key_groups = (
            merge.positions,
            merge.key_groups,
        )
        assert len(merge.runs) >= 3
        assert merge.runs == in_order(merge.runs)
        assert merge.drops_deletes == (positions.start == 0)
        left = [run for run in self.runs if run not in merge.runs]
        assert len(left) + len(merge.runs) == len(self.runs)
        size_mib = sum(run.size_bytes for run in merge.runs) / MIB
        self.runs = in_order([*left, *self.tile(positions, key_groups, size_mib)])


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_merges_keeps_the_tiles(seed: int) -> None:
    """The runs always tile the ledger, merging ends, and a key group has few runs, however merges are cut."""
    story = _Story(seed)
    for _ in range(40):
        story.round()
    assert len(lanes(story.runs)) <= 2 * 8


# ---- files


def test_a_file_ends_behind_its_limit_and_where_runs_below_begin() -> None:
    """A file is cut at a key group's end: above the limit always, at a cut of runs below if large enough."""
    plain, cuts = Cuts(max_bytes=1600), Cuts(max_bytes=1600, at=(10, 20))
    assert plain.before(5, 4, 1599) is None
    assert plain.before(5, 4, 1600) == 5
    assert cuts.before(10, 4, 99) is None
    assert cuts.before(10, 4, 100) == 10
    assert cuts.before(25, 4, 100) == 20
    assert cuts.before(25, 24, 100) is None
    assert (plain.least_bytes, cuts.least_bytes) == (1600, 100)


def test_runs_are_cut_where_older_ones_begin() -> None:
    """Cuts of runs count if these cover earlier positions of the same key groups."""
    runs = [
        _run("a", range(5), range(10), 1),
        _run("b", range(5), range(10, 30), 1),
        _run("c", range(5), range(30, 99), 1),
    ]
    newer = _run("d", range(5, 6), range(12, 13), 1)
    assert cut_points([*runs, newer], 0, MAX_KEY_GROUPS, 5) == (10, 30)
    assert cut_points(runs, 10, 30, 5) == ()


def test_lanes_hold_each_key_group_once_oldest_first() -> None:
    """Runs side by side share a lane. A newer run of a key group is in a later lane."""
    a, b = _run("a", range(5), range(10), 1), _run("b", range(5), range(10, MAX_KEY_GROUPS), 1)
    c, d = _run("c", range(5, 6), range(MAX_KEY_GROUPS), 1), _run("d", range(6, 7), range(10), 1)
    e = _run("e", range(6, 7), range(10, MAX_KEY_GROUPS), 1)
    assert lanes([a, b, c, d, e]) == ((a, b), (c,), (d, e))
    assert lanes([]) == ()
