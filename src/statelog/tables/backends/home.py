"""`Home`: the place of a table's local directory: its lock, and what becomes of a database that cannot be used.

    <directory>/<log>/<writer>/lock       held as long as the table is open
    <directory>/<log>/<writer>/db         the database
    <directory>/<log>/<writer>/making     one that is being made; what a kill leaves of it is removed
    <directory>/<log>/<writer>/damaged    says that the database was found damaged while it was in use
    <directory>/<log>/<writer>/aside-...  databases that could not be used

Invariants:
- One table at a time uses a home, of this process or another. A kill frees the lock; a fork does not hold it.
- A database that cannot be used is renamed, never deleted: a person may want to see it. Each time is a log line.
"""

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path
from weakref import WeakSet

from statelog.errors import LogInUse
from statelog.recovery.targets.durable import make_parents, sync
from statelog.seams import Seams
from statelog.storage.local.disk import local_disk

__all__ = ["Home"]

_LOG = logging.getLogger("statelog.tables")
_open: "WeakSet[Home]" = WeakSet()


class Home:
    """The home of one table, locked. Raises LogInUse if another table is in it, StoreUnavailable."""

    def __init__(self, directory: Path, log: str, writer: str) -> None:
        self.path = directory / log / writer
        self.database = self.path / "db"
        self.unfinished = self.path / "making"
        self._damaged = self.path / "damaged"
        with local_disk(self.path):
            make_parents(self.database)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise LogInUse(
                "another table has this directory open",
                path=str(self.path),
                hint="Stop the other process first, or give this one a directory of its own",
            ) from error
        _open.add(self)

    @property
    def damage(self) -> str:
        """What was found wrong with the database by the life before; empty if nothing was."""
        with local_disk(self.path):
            return self._damaged.read_text("utf-8") if self._damaged.exists() else ""

    def note_damage(self, problem: str) -> None:
        """Let the next life set the database aside."""
        with local_disk(self.path):
            self._damaged.write_text(problem or "unknown", "utf-8")
            sync(self._damaged)
            sync(self.path)

    def set_aside(self, reason: str, seams: Seams) -> Path:
        """Rename the database, loudly, so that another can be made in its place; returns where it is now."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seams.wall_clock()))
        aside = self.path / f"aside-{stamp}-{seams.new_id()[:8]}"
        with local_disk(self.path):
            self.database.rename(aside)
            self._damaged.unlink(missing_ok=True)
            sync(self.path)
        _LOG.warning("the local state %s is set aside as %s and rebuilt: %s", self.database, aside.name, reason)
        return aside

    def begin(self) -> None:
        """Remove what a kill left of a database that was never finished."""
        with local_disk(self.path):
            if self.unfinished.exists():
                shutil.rmtree(self.unfinished)

    def finish(self) -> None:
        """The database that was made is the one from now on."""
        with local_disk(self.path):
            self.unfinished.rename(self.database)
            sync(self.path)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self in _open:
            _open.discard(self)
            os.close(self._lock)


def _forget_parents() -> None:
    """In a forked child: an inherited lock would outlive the parent that it belongs to."""
    for home in list(_open):
        home.close()


os.register_at_fork(after_in_child=_forget_parents)
