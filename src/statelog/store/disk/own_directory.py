"""Local working directories, locked by their owner, and swept by the next one after a kill.

The kernel releases a dead process' locks, so a free lock shows that the directory's owner is dead. That needs neither
process ids, which are reused, nor ages, as a merge may take hours. Tools that clean temporary directories by age spare
locked ones, too.

Invariants:
- A directory is removed only if its name is of the caller's form with 32 hex digits, our user owns it, and its lock was
  free.
- An owner gets a directory only after it got the lock and the directory still existed.
- A fork neither removes its parent's directory nor keeps it locked.
"""

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from statelog.closing import Closing
from statelog.environment import current_environment

_LOG = logging.getLogger("statelog.log")

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_held: "set[OwnDirectory]" = set()


class OwnDirectory(Closing):
    """A directory that this process made and locked. Made by `make_own`, deleted by `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        _held.add(self)

    def close(self) -> None:
        """Delete the directory and its content, and unlock it. Idempotent; does nothing in a fork.

        A failure to delete is a log line.
        """
        if self not in _held:
            return  # It was removed before, or this is a fork.
        try:
            _delete(self.path)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Release this process's lock, once: when it is closed, or in a child that inherited it."""
        _held.discard(self)
        os.close(self._lock)


def make_own(parent: Path, prefix: str, suffix: str = "", *, new_id: Callable[[], str] | None = None) -> OwnDirectory:
    """Make a directory `<prefix><32 hex digits of new_id><suffix>` in `parent`, for this user only.

    Directories of dead owners are removed first; a failure to do so is a log line. Raises OSError.
    """
    sweep(parent, prefix, suffix)
    new_id = new_id or current_environment().new_id
    while True:
        path = parent / f"{prefix}{new_id()}{suffix}"
        lock = _make_locked(path)
        if lock is not None:
            return OwnDirectory(path, lock)


def sweep(parent: Path, prefix: str, suffix: str = "") -> list[Path]:
    """Remove the directories of dead owners with names of this form in `parent`, and return them. Raises OSError."""
    named = re.compile(re.escape(prefix) + "[0-9a-f]{32}" + re.escape(suffix))
    with os.scandir(parent) as entries:
        found = sorted(Path(entry.path) for entry in entries if named.fullmatch(entry.name))
    return [path for path in found if _remove_if_dead(path)]


def _make_locked(path: Path) -> int | None:
    """Make a directory and lock it. Return None if a sweep removed it in between."""
    path.mkdir(mode=0o700)
    try:
        lock = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError:
        path.rmdir()
        raise
    if _lock(lock) is not False and _is_still_there(path, lock):
        return lock
    os.close(lock)
    return None


def _remove_if_dead(path: Path) -> bool:
    try:
        lock = os.open(path, _FLAGS)
    except OSError:
        return False  # It was removed, is no directory, or is not readable by us.
    try:
        is_dead = os.fstat(lock).st_uid == os.geteuid() and _lock(lock) is True and _is_still_there(path, lock)
        return is_dead and _delete(path)
    finally:
        os.close(lock)


def _delete(path: Path) -> bool:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return True  # Another process was faster.
    except OSError as error:
        _LOG.warning("%s stays until it is swept: %s", path, error)
        return False
    return True


def _lock(lock: int) -> bool | None:
    """Take the lock. Return False if another process has it, None if the file system cannot lock directories.

    In the latter case directories are never swept.
    """
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


def _forget_parent() -> None:
    """Release inherited locks in a forked child, which would make a dead parent's directories look in use."""
    for directory in list(_held):
        directory.let_go()


os.register_at_fork(after_in_child=_forget_parent)
