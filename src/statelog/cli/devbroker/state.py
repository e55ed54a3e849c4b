"""The note of the broker that runs in a directory: process, address, version.

Written by one rename, so that a reader never sees half of it. Never trusted alone: a note may outlive its process, and
readers compare the process's start time.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from statelog.cli.devbroker.process import ProcessId, is_alive

__all__ = ["RunningBroker", "forget", "note_running", "read_running"]

_NAME = "running.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A broker that was started: `process_started` is its start time in this system's own unit, port its listener's."""

    pid: int
    process_started: str
    port: int
    kafka_version: str

    @property
    def process(self) -> ProcessId:
        """The process, for certain."""
        return ProcessId(pid=self.pid, started=self.process_started)


def note_running(directory: Path, running: RunningBroker) -> None:
    """Write the note."""
    fresh = directory / f"{_NAME}.{os.getpid()}"
    fresh.write_text(json.dumps(asdict(running)), encoding="ascii")
    fresh.replace(directory / _NAME)


def read_running(directory: Path) -> RunningBroker | None:
    """The broker that the note names, if it lives; None if it is dead, or if there is no readable note."""
    try:
        noted = json.loads((directory / _NAME).read_text(encoding="ascii"))
        running = RunningBroker(**noted)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return running if is_alive(running.process) else None


def forget(directory: Path) -> None:
    """Remove the note."""
    (directory / _NAME).unlink(missing_ok=True)
