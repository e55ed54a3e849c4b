"""`StateDirectory`: a table's local directory: its lock, and what becomes of a database that cannot be used.

    <directory>/<log>/<writer>/lock       held as long as the table is open
    <directory>/<log>/<writer>/db         the database
    <directory>/<log>/<writer>/making     one that is being made; what a kill leaves of it is removed
    <directory>/<log>/<writer>/damaged    says that the database was found damaged while it was in use
    <directory>/<log>/<writer>/boot       the boot of the machine in which the database was used last, and its inode
    <directory>/<log>/<writer>/aside-...  the last databases that could not be used
    <directory>/<log>/<writer>/lost-...   copies of what the log lost, as a person accepted; nothing deletes them

Invariants:
- The directory is its owner's alone, whatever the umask, unless a person gave it other rights.
- One table at a time uses it, of this process or another. A kill frees the lock; a fork does not hold it.
- A database that cannot be used is renamed: a person may want to see it. The newest two stay: a state that moves
  between machines would fill all their disks with itself.
- Closing the directory closes any database that is still open in it, so that an interrupted opening never blocks the
  next one.
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
from statelog.store.disk.disk import local_disk, make_parents, sync

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
        """Free nothing of it: this is a forked child, and it is the parent's."""
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
        """Those that were opened here: they are closed with it, if nobody has by then."""
        with local_disk(self.path):
            make_parents(self.path)
            if not self.path.exists():
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
        """What was found wrong with the database by the life before; empty if nothing was."""
        with local_disk(self.path):  # On a full disk there may be no text: that the file is there says enough.
            return self._damaged.read_text("utf-8", "replace") or _UNKNOWN if self._damaged.exists() else ""

    def note_damage(self, problem: str) -> None:
        """Let the next life set the database aside, if the disk takes a note; else it finds the damage again."""
        with suppress(Unavailable), local_disk(self.path):
            self._damaged.write_text(problem or _UNKNOWN, "utf-8")
            sync(self._damaged)
            sync(self.path)

    def settle(self, boot_id: str) -> None:
        """What may have been lost with another boot of the machine, or was never there in a copy, is not counted on:
        the database goes back to its files, which are synced. See docs/protocol-table.md, a power loss.
        """
        with local_disk(self.path):
            noted = self._boot.read_text("utf-8", "replace") if self._boot.exists() else ""
            if boot_id and noted == self._use(boot_id):
                return
        if self.database.exists():
            with local_disk(self.database):
                for log in self.database.glob("*.log"):
                    log.unlink()
                sync(self.database)
        self.note_boot(boot_id)

    def _use(self, boot_id: str) -> str:
        if not self.database.exists():
            return boot_id
        found = self.database.stat()
        return f"{boot_id} {found.st_dev}:{found.st_ino}"

    def note_boot(self, boot_id: str) -> None:
        """The database is used in this boot from now on."""
        with local_disk(self.path):
            self._boot.write_text(self._use(boot_id), "utf-8")
            sync(self._boot)
            sync(self.path)

    def set_aside(self, reason: str, environment: Environment, *, is_last_copy: bool = False) -> Path:
        """Rename the database, loudly, so that another can be made in its place; returns where it is now."""
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
        """All but the newest, and the one before: their names begin with the time. One that cannot be deleted stays."""
        others = sorted(found for found in self.path.glob("aside-*") if found != newest)
        for old in others[: 1 - _ASIDES]:
            _LOG.info("%s, which was set aside earlier, is deleted", old)
            shutil.rmtree(old, ignore_errors=True)

    def begin(self) -> None:
        """Remove what a kill left of a database that was never finished, or of its being set aside."""
        with local_disk(self.path):
            if not self.database.exists():
                self._damaged.unlink(missing_ok=True)
            if self.unfinished.exists():
                shutil.rmtree(self.unfinished)

    def finish(self) -> None:
        """The database that was made is the one from now on."""
        with local_disk(self.path):
            self.unfinished.rename(self.database)
            sync(self.path)

    def close(self) -> None:
        """Close what is open, and release the lock. Idempotent."""
        with ExitStack() as closing:
            closing.callback(self.unlock)
            for database in list(self.databases):
                closing.callback(database.close)

    def abandon(self) -> None:
        """In a forked child: the databases are the parent's, and here the lock is not held."""
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
        self.unlock()  # As a file that is dropped unclosed: the same process may open it again.


def _forget_parents() -> None:
    """In a forked child: an inherited lock would outlive the parent that it belongs to."""
    for directory in list(_open):
        directory.abandon()


os.register_at_fork(after_in_child=_forget_parents)
