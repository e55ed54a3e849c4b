"""`RunRef`: a run as a manifest names it, and how the runs of one snapshot fit together. Pure.

A run covers a rectangle: some ledger positions times some key groups. So parts of the key groups are written, merged
and read by themselves; most runs cover all key groups.

Invariants:
- The runs of a snapshot tile the ledger below its position times all key groups: nothing twice, nothing missing.
- They lie in the order of (start position, first key group). Per key group that is oldest first.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from statelog.schemas.keys.key_groups import MAX_KEY_GROUPS
from statelog.schemas.snapshot.runs import RunFile, RunIndex

__all__ = ["RunRef", "Strips", "check_tiles", "in_order", "lanes", "stretched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """A run as a manifest names it: what it covers, and how to know it is whole.

    It covers the ledger positions from start to end, of the key groups from first to end (both exclusive); the end of
    all key groups is MAX_KEY_GROUPS, however many the log has. `level` is 0 for the delta of one round, else one more
    than the highest level it was merged from.
    """

    path: str
    start_position: int
    end_position: int
    first_key_group: int = 0
    end_key_group: int = MAX_KEY_GROUPS
    level: int
    rows: int
    size_bytes: int
    sha256: bytes
    value_schema_id: int
    index: RunIndex

    @classmethod
    def of(
        cls,
        file: RunFile,
        *,
        start_position: int,
        end_position: int,
        first_key_group: int = 0,
        end_key_group: int = MAX_KEY_GROUPS,
        level: int,
        value_schema_id: int,
    ) -> "RunRef":
        """The reference to a finished run."""
        return cls(
            path=file.path,
            start_position=start_position,
            end_position=end_position,
            first_key_group=first_key_group,
            end_key_group=end_key_group,
            level=level,
            rows=file.rows,
            size_bytes=file.size_bytes,
            sha256=bytes.fromhex(file.sha256),
            value_schema_id=value_schema_id,
            index=file.index,
        )

    @property
    def file(self) -> RunFile:
        """The facts that a reader of the file needs."""
        return RunFile(
            path=self.path, size_bytes=self.size_bytes, rows=self.rows, sha256=self.sha256.hex(), index=self.index
        )


class Strips:
    """The key groups cut wherever a run begins or ends: within a strip, every run covers all of it or nothing."""

    def __init__(self, runs: Iterable[RunRef]) -> None:
        bounds = {bound for run in runs for bound in (run.first_key_group, run.end_key_group)}
        self._bounds = sorted(bounds | {0, MAX_KEY_GROUPS})

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def of(self, run: RunRef) -> slice:
        """The strips that the run covers."""
        return slice(bisect_left(self._bounds, run.first_key_group), bisect_left(self._bounds, run.end_key_group))


def in_order(runs: Iterable[RunRef]) -> tuple[RunRef, ...]:
    """The runs in the order of a manifest."""
    return tuple(sorted(runs, key=_place))


def stretched(runs: Sequence[RunRef], position: int) -> tuple[RunRef, ...]:
    """The runs, the newest ones reaching up to `position`, because the ledger between brought no change."""
    end_position = max((run.end_position for run in runs), default=position)
    return tuple(replace(run, end_position=position) if run.end_position == end_position else run for run in runs)


def check_tiles(runs: Sequence[RunRef], position: int) -> None:
    """Raise ValueError unless the runs (at least one) tile the positions below this one, in order."""
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
    """Runs in manifest order as few streams: the runs of a lane have no key group in common, and lie in their order.

    Of two runs that share a key group the newer one lies in a later lane. So there are as many lanes as the most runs
    of any key group, and whoever merges them opens no more files at once.
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
