"""`RunRef`: a run as a manifest names it, how the runs of one snapshot fit together, and which to merge next. Pure.

A run covers a rectangle: some ledger positions times some key groups. So parts of the key groups can be written, merged
and read separately; most runs cover all key groups. Every key group has its own tiers: powers of `fanout` in size. A
merge takes the runs of a full tier, and further runs until the result is a rectangle again.

Invariants:
- The runs of a snapshot tile the ledger below its position times all key groups, without overlaps or holes.
- They lie in the order of (start position, first key group). Per key group that is oldest first.
- A merge takes whole runs that tile a rectangle: per key group they are adjacent.
- Only a merge that starts at the first ledger position drops deletes: nothing older of its key groups exists.
- Merging ends: each merge leaves fewer runs in a key group and more in none.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from statelog.errors import ConfigError
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.snapshot.runs import RunFile, RunIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef(RunFile):
    """A run as a manifest names it: its file, and the rectangle that it covers.

    Ends are exclusive. A run of all key groups ends at MAX_KEY_GROUPS, however many the log has. `level` is 0 for the
    delta of one round, else one more than the highest level it was merged from.
    """

    start_position: int
    end_position: int
    first_key_group: int = 0
    end_key_group: int = MAX_KEY_GROUPS
    level: int
    value_schema_id: int


class Strips:
    """The key groups cut wherever a run begins or ends: within a strip, every run covers all of it or nothing."""

    def __init__(self, runs: Iterable[RunRef]) -> None:
        bounds = {bound for run in runs for bound in (run.first_key_group, run.end_key_group)}
        self._bounds = sorted(bounds | {0, MAX_KEY_GROUPS})

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def of(self, run: RunRef) -> slice:
        """Return the strips that the run covers."""
        return slice(bisect_left(self._bounds, run.first_key_group), bisect_left(self._bounds, run.end_key_group))


def in_order(runs: Iterable[RunRef]) -> tuple[RunRef, ...]:
    """Return the runs in the order of a manifest."""
    return tuple(sorted(runs, key=_place))


def in_place(runs: Iterable[RunRef], replaced: Iterable[RunRef], new: Iterable[RunRef]) -> tuple[RunRef, ...]:
    """Return the runs in the order of a manifest, with `new` runs in place of the `replaced` ones."""
    paths = {run.path for run in replaced}
    return in_order((*(run for run in runs if run.path not in paths), *new))


def stretched(runs: Sequence[RunRef], position: int) -> tuple[RunRef, ...]:
    """Extend the newest runs up to `position`, because the ledger between holds no change."""
    end_position = max((run.end_position for run in runs), default=position)
    return tuple(replace(run, end_position=position) if run.end_position == end_position else run for run in runs)


def check_tiles(runs: Sequence[RunRef], position: int) -> None:
    """Raise ValueError unless the runs (at least one) tile the positions below `position`, in order."""
    strips = Strips(runs)
    covered = [0] * len(strips)
    before = (-1, -1)
    for run in runs:
        if _place(run) <= before:
            raise ValueError(f"{run.path} is out of order")
        before, mine = _place(run), strips.of(run)
        if any(end_position != run.start_position for end_position in covered[mine]):
            raise ValueError(f"{run.path} and an older run are not adjacent")
        covered[mine] = [run.end_position] * (mine.stop - mine.start)
    if any(end_position != position for end_position in covered):
        raise ValueError("the newest run of a key group does not reach the position")


def lanes(runs: Iterable[RunRef]) -> tuple[tuple[RunRef, ...], ...]:
    """Arrange runs in manifest order as few streams. The runs of a lane ascend, and share no key group.

    Of two runs that share a key group, the newer one is in a later lane. So there are as many lanes as the most runs of
    any key group, and a merge has only so many files open.
    """
    given = list(runs)
    strips = Strips(given)
    depths = [0] * len(strips)
    found: list[list[RunRef]] = []
    for run in given:
        mine = strips.of(run)
        depth = max(depths[mine])
        found += [[]] * (depth == len(found))
        found[depth] = [*found[depth], run]
        depths[mine] = [depth + 1] * (mine.stop - mine.start)
    return tuple(tuple(sorted(lane, key=lambda run: run.first_key_group)) for lane in found)


def _place(run: RunRef) -> tuple[int, int]:
    return run.start_position, run.first_key_group


# ---- which to merge next


_SMALLEST_TIER_BYTES = 1024 * 1024
_PIECES = 16
_EXPECTED = "expected/"


@dataclass(frozen=True, slots=True)
class Merge:
    """The runs to merge, in manifest order. They tile a rectangle; the merged runs tile the same one."""

    runs: tuple[RunRef, ...]

    @property
    def positions(self) -> range:
        """The covered ledger positions."""
        return range(min(run.start_position for run in self.runs), max(run.end_position for run in self.runs))

    @property
    def key_groups(self) -> range:
        """The covered key groups."""
        return range(min(run.first_key_group for run in self.runs), max(run.end_key_group for run in self.runs))

    @property
    def level(self) -> int:
        """The level of the merged runs."""
        return 1 + max(run.level for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """The size of its input."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def drops_deletes(self) -> bool:
        """Whether the merge may leave deletes out."""
        return self.positions.start == 0

    def overlaps(self, run: RunRef) -> bool:
        """Return whether a run's rectangle overlaps the merge's."""
        positions, key_groups = self.positions, self.key_groups
        return (
            run.start_position < positions.stop
            and positions.start < run.end_position
            and run.first_key_group < key_groups.stop
            and key_groups.start < run.end_key_group
        )


def choose_merges(runs: Sequence[RunRef], fanout: int = 4) -> tuple[Merge, ...]:
    """Return the next merges of a snapshot's runs; none if there is nothing to do. No two merges share a run.

    Of each key group it takes the whole newest tier of `fanout` runs or more. A run counts at least as large as every
    newer one, so the runs of a tier are adjacent. When no merge is left, a tier of a key group has at most
    `fanout - 1` runs. Merges of many runs come first.
    """
    if fanout < 2:
        raise ConfigError("a merge needs at least two runs", fanout=fanout)
    strips = Strips(runs)
    columns: list[list[RunRef]] = [[] for _ in range(len(strips))]
    for run in runs:
        for column in columns[strips.of(run)]:
            column.append(run)
    tiers = [tier for column in columns if (tier := _full_tier(column, fanout))]
    full = {tuple(run.path for run in tier): tier for tier in tiers}
    chosen: list[Merge] = []
    for merge in sorted((_closed(runs, tier) for tier in full.values()), key=lambda merge: -len(merge.runs)):
        if not any(merge.overlaps(run) for other in chosen for run in other.runs):
            chosen.append(merge)
    return tuple(chosen)


def expected_run(positions: range, key_groups: range, *, level: int, name: str, size_bytes: int) -> RunRef:
    """Make a run that is not written yet, of about this size. It only serves to choose merges."""
    return RunRef(
        path=f"{_EXPECTED}{name}",
        size_bytes=size_bytes,
        rows=0,
        sha256=b"",
        index=RunIndex(row_groups=(), footer_offset=0, footer_checksum=0),
        start_position=positions.start,
        end_position=positions.stop,
        first_key_group=key_groups.start,
        end_key_group=key_groups.stop,
        level=level,
        value_schema_id=0,
    )


def is_expected(run: RunRef) -> bool:
    """Return whether `expected_run` made the run."""
    return run.path.startswith(_EXPECTED)


def newest_bytes(runs: Iterable[RunRef], level: int) -> int | None:
    """Return the size of a level's newest runs, those of one start position; None if the level is empty."""
    mine = [run for run in in_order(runs) if run.level == level]
    return sum(run.size_bytes for run in mine if run.start_position == mine[-1].start_position) if mine else None


def affordable(merges: Sequence[Merge], most_bytes: int, *, at_least_one: bool) -> tuple[Merge, ...]:
    """Return the merges, in their order, that together read at most `most_bytes`; at least one if asked for.

    The others wait for the next round. A waiting tier grows, and merges of many runs come first. So none waits for
    ever, and one merge takes all that has piled up.
    """
    chosen: list[Merge] = []
    for merge in merges:
        if merge.size_bytes <= most_bytes or (at_least_one and not chosen):
            chosen.append(merge)
            most_bytes -= merge.size_bytes
    return tuple(chosen)


def _full_tier(runs: Sequence[RunRef], fanout: int) -> tuple[RunRef, ...]:
    """Return the newest full tier of one key group's runs, or nothing."""
    end = len(runs)
    for _, members in groupby(_tiers_from_newest(runs, fanout)):
        count = len(list(members))
        if count >= fanout:
            return tuple(runs[end - count : end])
        end -= count
    return ()


def _tiers_from_newest(runs: Sequence[RunRef], fanout: int) -> list[int]:
    tiers: list[int] = []
    for run in reversed(runs):
        units = run.size_bytes / _SMALLEST_TIER_BYTES
        tier = math.floor(math.log(units, fanout)) + 1 if units >= 1 else 0
        tiers.append(max([tier, *tiers[-1:]]))
    return tiers


def _closed(runs: Sequence[RunRef], tier: tuple[RunRef, ...]) -> Merge:
    """Return the smallest merge of these runs that is a rectangle: every run that overlaps it is added."""
    merge = Merge(tier)
    while len(overlapping := tuple(run for run in runs if merge.overlaps(run))) > len(merge.runs):
        merge = Merge(overlapping)
    return merge


# ---- files


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Rules for cutting a run into files, always between key groups.

    A file ends with the key group in which it reaches `max_bytes`. It also ends before a key group of `at`, where older
    runs begin, once it has `least_bytes`: so these key groups can merge separately.
    """

    max_bytes: int
    at: tuple[int, ...] = ()

    @property
    def least_bytes(self) -> int:
        """The smallest size of a file that is cut: less where older runs begin."""
        return max(1, self.max_bytes // _PIECES) if self.at else self.max_bytes

    def before(self, key_group: int, last_key_group: int, size_bytes: int) -> int | None:
        """Return where to cut a file of `size_bytes` between `last_key_group` and the next `key_group`, or None."""
        points = [point for point in self.at if last_key_group < point <= key_group]
        if points and size_bytes >= self.least_bytes:
            return points[-1]
        return key_group if size_bytes >= self.max_bytes else None


def cut_points(runs: Iterable[RunRef], first_key_group: int, end_key_group: int, end_position: int) -> tuple[int, ...]:
    """Return the first key groups of the runs that cover anything below `end_position`, within these key groups."""
    firsts = {run.first_key_group for run in runs if run.start_position < end_position}
    return tuple(sorted(first for first in firsts if first_key_group < first < end_key_group))
