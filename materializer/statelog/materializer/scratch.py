"""Scratch directories: where a round writes runs before it uploads them. Gone when the round ends, or swept later.

A process that is killed leaves its directory behind. Each directory is locked by the round that it belongs to, and the
kernel releases a dead process' locks; so whoever gets the lock knows that the owner is gone, with no process ids (which
are used again) and no ages (a merge may take hours).

Invariants:
- Only a directory of our name, that belongs to our user and whose lock was free, is ever removed.
- A round works in a directory only after it got the lock and found the directory still there.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from statelog.schemas.errors import ConfigError, StoreUnavailable
from statelog.storage.run_file import local_disk

__all__ = ["scratch_directory", "sweep"]

_PREFIX = "statelog-round-"


@contextmanager
def scratch_directory(parent: Path) -> Generator[Path]:
    """A new directory below `parent`, removed on leaving; those of dead rounds are removed first.

    Raises ConfigError if `parent` is no directory that can be written to, StorageFull, StoreUnavailable.
    """
    sweep(parent)
    try:
        with local_disk(parent):
            path, lock = _make(parent)
    except StoreUnavailable as error:
        if os.access(parent, os.W_OK | os.X_OK):
            raise
        hint = "Name a directory that is there and can be written to, with room for two copies of the state"
        raise ConfigError("the scratch directory cannot be used", hint=hint, scratch=str(parent)) from error
    try:
        yield path
    finally:
        shutil.rmtree(path)
        os.close(lock)


def sweep(parent: Path) -> list[Path]:
    """Remove the directories that dead rounds left below `parent`. Returns them."""
    return [path for path in sorted(parent.glob(f"{_PREFIX}*")) if _remove_if_dead(path)]


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _open(path)
        if lock is None:
            continue  # A sweep took it between its making and its locking.
        if _lock(lock) is not False and _is_still_there(path, lock):
            return path, lock
        os.close(lock)


def _remove_if_dead(path: Path) -> bool:
    lock = _open(path)
    if lock is None:
        return False
    try:
        if os.fstat(lock).st_uid != os.geteuid() or _lock(lock) is not True or not _is_still_there(path, lock):
            return False
        # What cannot be removed takes room, and no more than that: not a reason for a round to fail.
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def _open(path: Path) -> int | None:
    """A descriptor of the directory itself; None if it is gone, no directory, or not ours to read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None


def _lock(lock: int) -> bool | None:
    """Take the lock; False if another has it, None on a file system that locks no directories: nobody sweeps there."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_still_there(path: Path, lock: int) -> bool:
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(lock)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
