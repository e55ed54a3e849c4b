"""What a process does at a named step of `examples.coordinator`, once: die, or stand still. It pickles.

A file in a directory that all of them share remembers that it happened, and to whom. `coordinate` is the example's, but
its workers start quickly.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from examples import coordinator
from tests.support.processes.starts import quick_start

__all__ = ["DieOnce", "StopOnce", "coordinate", "nothing"]


def coordinate(job: coordinator.Job) -> None:
    """The coordinator's process."""
    coordinator.__dict__["SPAWN"] = quick_start()  # Of another type, with the same methods.
    coordinator.coordinate(job)


def nothing(_: str) -> None:
    """Go on."""


@dataclass(frozen=True, slots=True)
class DieOnce:
    """SIGKILL for the first process at each of these steps."""

    directory: Path
    steps: tuple[str, ...]

    def __call__(self, step: str) -> None:
        """Die here, if nobody has yet."""
        if step in self.steps and _is_first(self.directory / step.replace(": ", "-")):
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def left(self) -> list[str]:
        """The steps at which nobody died."""
        return [step for step in self.steps if not (self.directory / step.replace(": ", "-")).exists()]


@dataclass(frozen=True, slots=True)
class StopOnce:
    """SIGSTOP for the first process at a step; `note` names it then."""

    note: Path
    step: str

    def __call__(self, step: str) -> None:
        """Stand still here, if nobody has yet."""
        if step == self.step and _is_first(self.note):
            os.kill(os.getpid(), signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The process that stands still, or 0."""
        return int(self.note.read_text() or 0) if self.note.exists() else 0


def _is_first(note: Path) -> bool:
    try:
        with note.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
