"""`StateDirectory`: a table's local directory: its lock, its database, and unusable databases.

    <directory>/<log>/<writer>/lock       held while the table is open
    <directory>/<log>/<writer>/db         the database
    <directory>/<log>/<writer>/making     a database that is being made; removed after a kill
    <directory>/<log>/<writer>/damaged    says that the database was found damaged while it was in use
    <directory>/<log>/<writer>/boot       the boot of the machine in which the database was used last, and its inode
    <directory>/<log>/<writer>/aside-...  the last databases that could not be used
    <directory>/<log>/<writer>/lost-...   databases with changes that the log lost and a person gave up; never deleted

Invariants:
- The directory is its owner's alone, whatever the umask, unless a person gave it other rights.
- One table at a time uses it, of this process or another. A kill frees the lock; a forked child does not hold it.
- An unusable database is renamed, because a person may want to see it. Only the newest two stay: a state that moves
  between machines would fill their disks.
- Closing the directory closes any database that is still open in it, so an interrupted opening never blocks the next.
"""

import fcntl
import logging
import os
import shutil
import time
from contextlib import ExitStack, suppress
from os import PathLike
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from statelog.closing import Closing, undone_by_errors
from statelog.environment import Environment
from statelog.errors import LogInUse, Unavailable
from statelog.store.disk.disk import is_there, local_disk, make_parents, sync

_LOG = logging.getLogger("statelog.tables")
_ASIDES = 2
_UNLOCKED = -1
_UNKNOWN = "unknown"
_open: "WeakSet[StateDirectory]" = WeakSet()


class OpenDatabase(Protocol):
    """A database that was opened in a directory."""

    def close(self) -> None:
        """Close it; its directory stays locked. Idempotent."""
        ...

    def abandon(self) -> None:
        """Free nothing of it in a forked child: it is the parent's."""
        ...


class StateDirectory(Closing):
    """The directory of one table, locked. Raises LogInUse if another table is in it, StoreUnavailable."""

    def __init__(self, directory: str | PathLike[str], log: str, writer: str) -> None:
        self._lock = _UNLOCKED
        self.path = Path(directory).absolute() / log / writer
        self.database = self.path / "db"
        self.unfinished = self.path / "making"
        self._damaged = self.path / "damaged"
        self._boot = self.path / "boot"
        self.databases: WeakSet[OpenDatabase] = WeakSet()
        """The databases that were opened here; `close` closes those still open."""
        with local_disk(self.path):
            make_parents(self.path)
            if not is_there(self.path):
                self.path.mkdir(mode=0o700, exist_ok=True)  # RocksDB's own files follow the umask.
                sync(self.path.parent)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _open.add(self)
            with undone_by_errors(self.unlock):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise LogInUse(
                        "another table has this directory open",
                        path=str(self.path),
                        hint="Close it, or stop its process; or give this table a directory of its own",
                    ) from error

    @property
    def damage(self) -> str:
        """The damage that the last process found in the database; empty if there was none."""
        with local_disk(self.path):  # On a full disk the note may be empty; the file itself says enough.
            return self._damaged.read_text("utf-8", "replace") or _UNKNOWN if is_there(self._damaged) else ""

    def note_damage(self, problem: str) -> None:
        """Have the next open set the database aside. If the disk takes no note, that open finds the damage again."""
        with suppress(Unavailable), local_disk(self.path):
            self._damaged.write_text(problem or _UNKNOWN, "utf-8")
            sync(self._damaged)
            sync(self.path)

    def drop_unsynced(self, boot_id: str) -> None:
        """Delete the write-ahead logs of a database of another boot, or of a copy: parts of them may be missing.

        The database goes back to its files, which are synced. See docs/protocol-table.md, a power loss.
        """
        with local_disk(self.path):
            noted = self._boot.read_text("utf-8", "replace") if is_there(self._boot) else ""
            if boot_id and noted == self._use(boot_id):
                return
        with local_disk(self.database):
            if is_there(self.database):
                for log in self.database.glob("*.log"):
                    log.unlink()
                sync(self.database)
        self.note_boot(boot_id)

    def _use(self, boot_id: str) -> str:
        if not is_there(self.database):
            return boot_id
        found = self.database.stat()
        return f"{boot_id} {found.st_dev}:{found.st_ino}"

    def note_boot(self, boot_id: str) -> None:
        """Note that the database is used in this boot from now on."""
        with local_disk(self.path):
            self._boot.write_text(self._use(boot_id), "utf-8")
            sync(self._boot)
            sync(self.path)

    def set_aside(self, reason: str, environment: Environment, *, is_last_copy: bool = False) -> Path:
        """Rename the database, with a warning, so that another can take its place. Return its new path."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(environment.wall_clock()))
        aside = self.path / f"{'lost' if is_last_copy else 'aside'}-{stamp}-{environment.new_id()[:8]}"
        with local_disk(self.path):
            self.database.rename(aside)
            self._damaged.unlink(missing_ok=True)
            sync(self.path)
        _LOG.warning("the local state %s is set aside as %s and rebuilt: %s", self.database, aside.name, reason)
        self._delete_old_asides(aside)
        return aside

    def _delete_old_asides(self, newest: Path) -> None:
        """Delete all but the newest and the one before, by the time in their names, as far as the disk lets it."""
        others = sorted(found for found in self.path.glob("aside-*") if found != newest)
        for old in others[: 1 - _ASIDES]:
            _LOG.info("%s, which was set aside earlier, is deleted", old)
            shutil.rmtree(old, ignore_errors=True)

    def begin(self) -> None:
        """Remove the remains of a database that a kill left unfinished, or half set aside."""
        with local_disk(self.path):
            if not is_there(self.database):
                self._damaged.unlink(missing_ok=True)
            if is_there(self.unfinished):
                shutil.rmtree(self.unfinished)

    def finish(self) -> None:
        """Rename the finished database to its place."""
        with local_disk(self.path):
            self.unfinished.rename(self.database)
            sync(self.path)

    def close(self) -> None:
        """Close the open databases, and release the lock. Idempotent."""
        with ExitStack() as closing:
            closing.callback(self.unlock)
            for database in list(self.databases):
                closing.callback(database.close)

    def abandon(self) -> None:
        """Drop the parent's databases and lock in a forked child, without freeing the former."""
        for database in list(self.databases):
            database.abandon()
        self.unlock()

    def unlock(self) -> None:
        """Release the lock alone. Idempotent."""
        _open.discard(self)
        lock, self._lock = self._lock, _UNLOCKED
        if lock != _UNLOCKED:
            os.close(lock)

    def __del__(self) -> None:
        self.unlock()  # As with a dropped open file, so that the same process may open it again.


def _forget_parents() -> None:
    """Drop all directories in a forked child: an inherited lock would outlive the parent."""
    for directory in list(_open):
        directory.abandon()


os.register_at_fork(after_in_child=_forget_parents)
