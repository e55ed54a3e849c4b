"""Which snapshots a table may stand on: a decision over its place, its epoch and a manifest. Pure.

A table's local changes are all those behind one snapshot, the first that it stood on. As nobody else can change its key
groups, any newer snapshot is as good below them: of a key without a local change it has the same value.

Invariants:
- No snapshot is older than the first one: what was changed in between would be missing.
- One above the table's place has to show that no other owner came in between, and as a rule none of the table's own
  commits either: the state would not be that of the place. Where only such a one is left, it differs from the place in
  keys alone that layers above the backend hold.
"""

from collections.abc import Collection
from dataclasses import dataclass

from statelog.schemas.snapshot.manifest import Manifest

__all__ = ["Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a table knows of its history: it has all changes from `first_position` to `position`, and owns the
    partitions since its Open at `epoch`. `losses` is how many losses a person had accepted by then.
    """

    first_position: int
    position: int
    losses: int
    writer: str
    epoch: int
    partitions: tuple[int, ...]

    def is_overtaken(self, manifest: Manifest) -> bool:
        """Whether a snapshot above the place knows a newer owner of one of the partitions."""
        rows = (row for row in manifest.state.partitions if row.partition in self.partitions)
        return manifest.position > self.position and any(row.newest_epoch > self.epoch for row in rows)

    def is_ahead(self, manifest: Manifest) -> bool:
        """Whether a snapshot has a commit of the table's own that is not part of its place yet."""
        return any(row.name == self.writer and row.commit_offset >= self.position for row in manifest.state.writers)

    def allows(self, manifest: Manifest, unreadable: Collection[str]) -> bool:
        """Whether the table may stand on a snapshot; not on one with a run that cannot be read."""
        return (
            manifest.position >= self.first_position
            and len(manifest.state.accepted) <= self.losses
            and not self.is_overtaken(manifest)
            and not any(run.path in unreadable for run in manifest.runs)
        )
