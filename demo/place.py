"""The place of the demo's log and files, which the demo passes to its processes as one JSON argument.

All files are in one directory of the user's cache, next to the development broker's, and are removed at the start.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from statelog.log import Log, Where
from statelog.testing.broker import cache_directory

__all__ = ["ALLOW_UNSAFE", "READER", "WRITER", "Place", "child_environment", "demo_directory", "fresh_directory"]

WRITER = "flights-job"
READER = "flights-copy"
ALLOW_UNSAFE = ("replication", "min-insync")
"""One broker holds one copy; a log that matters has three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The log and its directory on this machine."""

    log: str
    bootstrap: str
    directory: Path

    @property
    def kafka(self) -> dict[str, str]:
        """Client settings."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def where(self) -> Where:
        """Return the place of the log, for statelog."""
        return Where(self.kafka, self.root, allow_unsafe=ALLOW_UNSAFE, replication_factor=1)

    @property
    def root(self) -> str:
        """The URL below which the log's snapshots lie."""
        return (self.directory / "snapshots").as_uri()

    @property
    def input(self) -> Path:
        """The directory of the slices that Spark reads."""
        return self.directory / "input"

    @property
    def checkpoint(self) -> Path:
        """Spark's own checkpoint."""
        return self.directory / "spark-checkpoint"

    @property
    def followed(self) -> Path:
        """The directory of the second query's result."""
        return self.directory / "followed"

    @property
    def followed_checkpoint(self) -> Path:
        """The second query's checkpoint."""
        return self.directory / "followed-checkpoint"

    def open(self) -> Log:
        """Open the log. Raises as `Log.open`."""
        return Log.open(self.log, self.where)

    def to_json(self) -> str:
        """Return the place as JSON for a child's command line."""
        return json.dumps({**asdict(self), "directory": str(self.directory)})

    @classmethod
    def from_json(cls, text: str) -> "Place":
        """Parse the place from the command line."""
        read = json.loads(text)
        return cls(log=read["log"], bootstrap=read["bootstrap"], directory=Path(read["directory"]))


def demo_directory() -> Path:
    """Return the demo's directory, next to the development broker's in the user's cache."""
    return cache_directory().parent / "demo"


def fresh_directory(directory: Path) -> None:
    """Create `directory`, or empty it except for its lock file."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.suffix != ".lock":
            path.unlink()


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the demo's own processes: this interpreter and path in any working directory."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **(extra or {}),
    }
