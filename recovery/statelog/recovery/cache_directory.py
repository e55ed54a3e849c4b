"""The files of one attempt's cache: a private directory, whole and verified downloads, and clean-up of dead attempts.

    <base>/attempt-<uuid>/lock            held by flock as long as the attempt lives
    <base>/attempt-<uuid>/<uuid>.run      a whole, verified run
    <base>/attempt-<uuid>/<uuid>.partial  a download on its way, never read

An attempt is one cache in one process. Never decides which files to keep.

Invariants:
- A directory gets its name after its lock is held. So a lock that is free belongs to the dead, whatever its age; a
  directory without a lock (its owner died on the way in or out) goes by age, and a held lock is never touched.
- A file is readable under its name if and only if its length and its sha256 are those of its manifest.
- In a fork nothing is written or deleted, and the parent's lock is not kept alive.
"""

import fcntl
import hashlib
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from statelog.schemas.errors import ClosedError, CorruptRun
from statelog.schemas.runs import RunFile
from statelog.storage.store import Store
from statelog.storage.store_errors import guarded

__all__ = ["ABANDONED_S", "CacheDirectory", "CacheWarning", "sweep_attempts"]

ABANDONED_S = 3600.0
"""Age at which a directory without a lock counts as left behind: far more than it takes to make or remove one."""
_ATTEMPT, _NEW, _LOCK = "attempt-", ".new-", "lock"
_held: "set[CacheDirectory]" = set()


class CacheWarning(UserWarning):
    """The cache could not do its part; the recovery went on without it, or files stay until the next start."""


class CacheDirectory:
    """The directory of this attempt. Made by `create`; belongs to the process that made it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._pid = os.getpid()
        self._removed = False
        _held.add(self)

    @classmethod
    def create(cls, base: Path, *, now_s: Callable[[], float] = time.time) -> "CacheDirectory":
        """Sweep what dead attempts left in `base`, and make a new directory there.

        `now_s` is the time since 1970 by which left-overs without a lock are judged. Raises StoreUnavailable,
        StorageFull.
        """
        with _local("make a cache in", base):
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            sweep_attempts(base, now_s())
            return cls(*_make_attempt(base))

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that owns the directory."""
        return self._pid != os.getpid()

    def check_owner(self) -> None:
        """Raise ClosedError in a fork of the process that made the directory."""
        if self.is_foreign:
            raise ClosedError(
                "the cache was made in another process",
                hint="Make caches after the fork, in the process that uses them",
                made_in_pid=self._pid,
                used_in_pid=os.getpid(),
            )

    def new_file(self) -> Path:
        """A name that no file has or had."""
        return self.path / f"{uuid.uuid4().hex}.run"

    def fetch(self, store: Store, run: RunFile, file: Path) -> None:
        """Download a whole run; `file` appears when it is whole and verified, and nothing stays if that fails.

        Raises NotFound, CorruptRun, StoreUnavailable, StorageFull.
        """
        partial = file.with_suffix(".partial")
        try:
            with _local("download a run to", partial):
                store.download(run.path, partial)
                _verify(partial, run)
                partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)

    def open(self, file: Path) -> BinaryIO:
        """A reader of a file that was fetched. Raises StoreUnavailable."""
        with _local("open", file):
            return file.open("rb")

    def delete(self, file: Path) -> None:
        """Delete a file that was fetched; open readers keep on reading. Warns if it stays."""
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(f"a cached run stays until the cache is closed: {error}", CacheWarning, stacklevel=2)

    def remove(self) -> None:
        """Delete everything and give the lock up. Idempotent; warns of what stays for the next start to sweep."""
        if self._removed or self.is_foreign:
            return
        self._removed = True
        try:
            _remove_attempt(self.path)
        except OSError as error:
            warnings.warn(f"a cache stays until the next one is made: {error}", CacheWarning, stacklevel=2)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Give up this process's hold on the lock, once: after `remove`, and in a child that inherited it."""
        _held.discard(self)
        os.close(self._lock)


def sweep_attempts(base: Path, now_s: float) -> None:
    """Delete what dead attempts of this user left in `base`. Warns of what cannot be deleted. Raises OSError."""
    for entry in _directories(base):
        try:
            _sweep(entry, now_s)
        except FileNotFoundError:
            continue  # Its owner, or another sweep, was faster.
        except OSError as error:
            warnings.warn(f"a dead cache stays: {error}", CacheWarning, stacklevel=2)


def _directories(base: Path) -> list[Path]:
    with os.scandir(base) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if entry.name.startswith((_ATTEMPT, _NEW)) and entry.is_dir(follow_symlinks=False)
        ]


def _sweep(attempt: Path, now_s: float) -> None:
    status = attempt.stat()
    if status.st_uid != os.geteuid():
        return
    try:
        lock = os.open(attempt / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        if now_s - status.st_mtime >= ABANDONED_S:
            _remove_attempt(attempt)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if attempt.name.startswith(_ATTEMPT) or now_s - status.st_mtime >= ABANDONED_S:
            _remove_attempt(attempt)
    except BlockingIOError:
        return  # It lives.
    finally:
        os.close(lock)


def _make_attempt(base: Path) -> tuple[Path, int]:
    """A new directory whose lock is held. Raises OSError."""
    name = uuid.uuid4().hex
    new, attempt = base / f"{_NEW}{name}", base / f"{_ATTEMPT}{name}"
    new.mkdir(mode=0o700)
    lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(attempt)
    except BaseException:
        os.close(lock)
        shutil.rmtree(new, ignore_errors=True)
        raise
    return attempt, lock


def _remove_attempt(attempt: Path) -> None:
    """Delete a directory, its lock last, so that whoever dies on the way leaves what the next sweep finds."""
    for path in attempt.iterdir():
        if path.name != _LOCK:
            path.unlink(missing_ok=True)
    shutil.rmtree(attempt)


def _verify(file: Path, run: RunFile) -> None:
    size_bytes = file.stat().st_size
    if size_bytes != run.size_bytes:
        raise CorruptRun("a download's length differs", path=run.path, got=size_bytes, expected=run.size_bytes)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != run.sha256:
        raise CorruptRun("a download's sha256 differs", path=run.path, got=digest, expected=run.sha256)


def _local(action: str, path: Path) -> AbstractContextManager[None]:
    """Failures of the local disk in our own terms."""
    return guarded(action=action, url=f"file://{path.parent}", path=path.name, reading=False)


def _forget_parent() -> None:
    """In a forked child: an inherited lock would make a dead parent's files look alive for as long as we live."""
    for directory in list(_held):
        directory.let_go()


os.register_at_fork(after_in_child=_forget_parent)
