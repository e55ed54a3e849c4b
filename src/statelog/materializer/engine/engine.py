"""`Engine`: who carries out the tasks of a round. The round plans, checks, and puts the manifest, whoever works."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from statelog.materializer.engine.tasks import Task
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.seams import Seams
from statelog.storage.local.disk import DiskHook
from statelog.storage.log.log import Log

__all__ = ["Engine", "EngineMaker", "RoundWork", "Written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The runs that some tasks wrote, and the seconds that the tasks took, one after the other."""

    runs: tuple[RunRef, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """What an engine gets for one round. `scratch` is a directory of the round on this machine.

    `go_on` raises once the round is given up.
    """

    log: Log
    scratch: Path
    go_on: Callable[[], None]
    seams: Seams
    disk: DiskHook


class Engine(Protocol):
    """Writes runs in one round. Never decides what is in a manifest, and never deletes what lies in the store."""

    def tasks_for(self, size_bytes: int) -> int:
        """Into how many tasks a fold or a merge of so many bytes is cut at most, one or more."""
        ...

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks. Raises Damaged, NotFound, Unavailable, and what `go_on` raises."""
        ...

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Runs that were merged into others. Those that no store has yet need not be kept."""
        ...

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload those of the runs that this engine wrote, and read each back, every byte, unless that was done.

        Returns them, and the seconds that reading back took. Raises CorruptRun or NotFound if one did not arrive whole,
        StoreUnavailable, StorageFull, and what `go_on` raises.
        """
        ...


EngineMaker = Callable[[RoundWork], Engine]
"""Makes the engine of one round."""
