"""Local working directories, locked by their owner, and swept by the next one after a kill.

The kernel releases a dead process' locks; so who gets the lock of a directory knows that its owner is gone, without
process ids (which are used again) and without ages (a merge may take hours). Tools that clean temporary directories by
age spare locked ones, too.

Invariants:
- Only a directory of the caller's name and 32 hex digits, that belongs to our user and whose lock was free, is ever
  removed.
- An owner gets a directory only after it got the lock and found the directory still there.
- A fork neither removes its parent's directory nor keeps it alive.
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
    """A directory that this process made and locked. Made by `make_own`; gone once it is closed."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        _held.add(self)

    def close(self) -> None:
        """Delete it with all that is in it, and unlock it. Idempotent; void in a fork. What stays is a log line."""
        if self not in _held:
            return  # It was removed before, or we are a fork.
        try:
            _delete(self.path)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Give up this process's hold on the lock, once: when it is closed, and in a child that inherited it."""
        _held.discard(self)
        os.close(self._lock)


def make_own(parent: Path, prefix: str, suffix: str = "", *, new_id: Callable[[], str] | None = None) -> OwnDirectory:
    """A new directory `<prefix><32 hex digits of new_id><suffix>` in `parent`, for this user only. Dead ones go first,
    or are log lines. Raises OSError.
    """
    sweep(parent, prefix, suffix)
    new_id = new_id or current_environment().new_id
    while True:
        path = parent / f"{prefix}{new_id()}{suffix}"
        lock = _make_locked(path)
        if lock is not None:
            return OwnDirectory(path, lock)


def sweep(parent: Path, prefix: str, suffix: str = "") -> list[Path]:
    """Remove what dead owners left in `parent` under names of this form, and return it. Raises OSError."""
    named = re.compile(re.escape(prefix) + "[0-9a-f]{32}" + re.escape(suffix))
    with os.scandir(parent) as entries:
        found = sorted(Path(entry.path) for entry in entries if named.fullmatch(entry.name))
    return [path for path in found if _remove_if_dead(path)]


def _make_locked(path: Path) -> int | None:
    """Make a directory and lock it; None if a sweep took it in between."""
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
        return False  # It is gone, no directory, or not ours to read.
    try:
        is_dead = os.fstat(lock).st_uid == os.geteuid() and _lock(lock) is True and _is_still_there(path, lock)
        return is_dead and _delete(path)
    finally:
        os.close(lock)


def _delete(path: Path) -> bool:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return True  # Somebody was faster.
    except OSError as error:
        _LOG.warning("%s stays until it is swept: %s", path, error)
        return False
    return True


def _lock(lock: int) -> bool | None:
    """Take the lock; False if another has it, None on a file system that locks no directories and so is not swept."""
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
    """In a forked child: an inherited lock would make a dead parent's files look alive for as long as we live."""
    for directory in list(_held):
        directory.let_go()


os.register_at_fork(after_in_child=_forget_parent)
