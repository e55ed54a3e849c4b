"""`RunCache`: runs on the local disk, their readers, and their removal. Never decodes a run.

The first reader of a run downloads it, in its own thread; later readers wait for that download. A run without readers
stays for `idle_s`, for the next recovery.

    <base>/attempt-<uuid>/<uuid>.run      a whole, verified run; or .partial, a download in progress, never read

An attempt is one cache in one process. The next attempt sweeps the files of dead ones.

Invariants:
- A file is readable under its name if and only if its length and its sha256 are those of its manifest.
- One lock guards the map and the counts. Each of lookup with retain, release, and remove is one critical section, so no
  file is removed while a reader is added. No thread downloads, or waits for a download, while it holds the lock.
- A failed download is not in the map: waiting readers get its error, and the next reader tries again.
- A reader counts once, however often it is closed.
- After `close` there is no file, no directory and no thread of this cache. A fork writes and deletes nothing.
"""

import copy
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from threading import Condition, Lock
from typing import BinaryIO, NamedTuple

from statelog.closing import Closing, OwnProcess, undone_by_errors
from statelog.environment import current_environment
from statelog.errors import ClosedError, ConfigError, CorruptRun, StorageFull, StoreUnavailable
from statelog.schemas.names import check_whole
from statelog.schemas.snapshot.runs import RunFile
from statelog.store.disk.disk import local_disk
from statelog.store.disk.own_directory import make_own
from statelog.store.port import Store

_LOG = logging.getLogger("statelog.recovery")
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Settings for local copies of runs, shared by all recoveries of a log in this process.

    directory  where the copies lie, on a local disk; many processes and logs may share one
    idle_s     how long a copy stays after its last reader, as long as the cache is in use; 0 removes it at once
    max_bytes  the most that the copies of one log in one process may take, None for no bound; the longest idle copies
               are removed first

    Raises ConfigError.
    """

    directory: Path
    idle_s: float = 600.0
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_directory(self.directory)
        if not (isinstance(self.idle_s, Real) and 0 <= self.idle_s < math.inf):
            raise ConfigError(f"idle_s is {self.idle_s!r} and must be a number of seconds, 0 or more")
        if self.max_bytes is not None:
            check_whole("max_bytes", self.max_bytes, 0)


def _check_directory(directory: object) -> None:
    if not isinstance(directory, Path):
        raise ConfigError(f"the cache's directory is {directory!r} and must be a pathlib.Path")


class CacheDirectory:
    """The directory of this attempt, at `path`, in `base`, where directories of dead attempts are swept.

    Belongs to the process that makes it, `owner`. Raises StoreUnavailable, StorageFull; a failed sweep is a log line.
    """

    def __init__(self, base: Path) -> None:
        environment = current_environment()
        self._new_id, self._disk = environment.new_id, environment.disk
        with local_disk(base, "make", self._disk):
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = make_own(base, "attempt-", new_id=self._new_id)
        self.path = self._own.path
        self.owner = OwnProcess("the cache")

    def new_file(self) -> Path:
        """Return a path that was never used before."""
        return self.path / f"{self._new_id()}.run"

    def fetch(self, store: Store, run: RunFile, file: Path) -> None:
        """Download a whole run. `file` appears when it is whole and verified; a failure leaves nothing.

        Raises NotFound, CorruptRun, StoreUnavailable, StorageFull.
        """
        partial = file.with_suffix(".partial")
        try:
            with local_disk(partial, "download", self._disk):
                store.download(run.path, partial)
            with local_disk(partial, "verify", self._disk):
                _verify(partial, run)
            with local_disk(partial, "rename", self._disk):
                partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)

    def open(self, file: Path) -> BinaryIO:
        """Open a fetched file. Raises StoreUnavailable."""
        with local_disk(file, "open", self._disk):
            return file.open("rb")

    def delete(self, file: Path) -> None:
        """Delete a fetched file; open readers can read on. A failure is a log line."""
        try:
            self._disk("delete", file)
            file.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("a cached run stays until the cache is closed: %s", error)

    def remove(self) -> None:
        """Delete everything. Idempotent; the next start sweeps any rest."""
        self._own.close()


def _verify(file: Path, run: RunFile) -> None:
    size_bytes = file.stat().st_size
    if size_bytes != run.size_bytes:
        raise CorruptRun("a download's length differs", path=run.path, got=size_bytes, expected=run.size_bytes)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").digest()
    if digest != run.sha256:
        raise CorruptRun("a download's sha256 differs", path=run.path, got=digest.hex(), expected=run.sha256.hex())


class CacheStatistics(NamedTuple):
    """Counts since the cache was made, and its content now. `downloads` includes failed ones; `removed` are files."""

    opened: int
    downloads: int
    downloaded_bytes: int
    failed: int
    removed: int
    files: int
    size_bytes: int
    readers: int


@dataclass(slots=True, eq=False)
class _Entry:
    """A cached run, or its download. `readers` includes readers that wait for it."""

    run: RunFile
    file: Path
    ready: "Future[None]" = field(default_factory=Future[None])
    readers: int = 0
    idle_until_s: float = math.inf


class CachedRun:
    """An open reader of a cached run; the run stays until it is closed. Closing is idempotent."""

    def __init__(self, file: BinaryIO, release: Callable[[], None]) -> None:
        self._file = file
        self._release = release
        self._lock = Lock()
        self._open = True

    def close(self) -> None:
        """Close the file and count the reader out, even if closing fails."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            try:
                self._file.close()
            finally:
                self._release()

    def __enter__(self) -> BinaryIO:
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


class RunCache(Closing):
    """Runs of one log as local files. Thread-safe; closed by its maker. A fork neither uses nor deletes it."""

    def __init__(self, directory: CacheDirectory, settings: CacheSettings) -> None:
        self.settings = settings
        self._directory = directory
        self._max_bytes = math.inf if settings.max_bytes is None else settings.max_bytes
        self._environment = current_environment()
        self._clock = self._environment.clock
        self._changed = Condition(Lock())
        self._entries: dict[str, _Entry] = {}
        self._counts = CacheStatistics(0, 0, 0, 0, 0, 0, 0, 0)
        self._closed = False
        self._janitor: Future[None] | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether this is a fork of the process that made it."""
        return self._directory.owner.is_foreign

    # ---- reading

    def open(self, store: Store, run: RunFile) -> CachedRun:
        """Open a run, which is downloaded from the store if it is not cached; close it, or use `with`.

        Raises NotFound, CorruptRun, StoreUnavailable, StorageFull (the local disk, or `max_bytes`), ClosedError.
        CorruptRun may mean that a cached copy cannot be opened; the next call downloads it again.
        """
        self._directory.owner.check()
        begun = list[_Entry]()
        with undone_by_errors(self._break_off, begun):
            entry = self._retain(run, begun)
            with undone_by_errors(self._release, entry):
                if begun:
                    self._directory.fetch(store, run, entry.file)
                    self._downloaded(entry, None)
                elif (error := entry.ready.exception()) is not None:
                    raise copy.copy(error) from error
                return CachedRun(self._open_file(entry), lambda: self._release(entry))

    def distrust(self, run: RunFile) -> None:
        """Drop the cached copy. It is deleted with its last reader; the next `open` downloads the run again."""
        self._directory.owner.check()
        with self._changed:
            entry = self._entries.get(run.path)
            if entry is not None and entry.ready.done():
                self._drop(entry)

    def _retain(self, run: RunFile, begun: list[_Entry]) -> _Entry:
        """Return the run's entry with one more reader. A new entry is added to `begun`: this reader downloads it."""
        with self._changed:
            self._check_open()
            entry = self._entries.get(run.path)
            if entry is None:
                self._make_room(run)
                entry = _Entry(run, self._directory.new_file())
                begun.append(entry)  # First: readers would wait for ever for a mapped entry that nobody downloads.
                self._entries[run.path] = entry
            entry.readers += 1
            self._count(opened=1)
            return entry

    def _break_off(self, begun: Sequence[_Entry]) -> None:
        """Fail the downloads of an opening that an error, such as Ctrl-C, has ended, so that waiting readers raise."""
        error = sys.exception()
        for entry in begun:
            if not entry.ready.done():
                broken = StoreUnavailable("the download was interrupted", path=entry.run.path, hint="Recover again")
                self._downloaded(entry, error if isinstance(error, Exception) else broken)

    def _downloaded(self, entry: _Entry, error: Exception | None) -> None:
        with self._changed:
            self._changed.notify_all()
            if error is None:
                self._count(downloads=1, downloaded_bytes=entry.run.size_bytes)
                entry.ready.set_result(None)
            else:
                self._count(downloads=1, failed=1)
                self._entries.pop(entry.run.path, None)
                self._directory.delete(entry.file)
                entry.ready.set_exception(error)

    def _open_file(self, entry: _Entry) -> BinaryIO:
        with self._changed:
            self._check_open()
            try:
                return self._directory.open(entry.file)
            except StoreUnavailable as error:
                self._drop(entry)
                raise CorruptRun(f"the copy of a run cannot be opened: {error}", path=entry.run.path) from error

    def _release(self, entry: _Entry) -> None:
        if self.is_foreign:
            return
        with self._changed:
            entry.readers -= 1
            if entry.readers or self._closed or not entry.ready.done():
                return
            if self._entries.get(entry.run.path) is not entry:
                self._directory.delete(entry.file)
            elif self.settings.idle_s == 0:
                self._remove(entry)
            else:
                entry.idle_until_s = self._clock() + self.settings.idle_s
                if self._janitor is None:  # One thread for the cache, from the first idle run on.
                    self._janitor = self._environment.begin(self._cleanup)
                self._changed.notify_all()

    # ---- removing; callers of the private methods hold the lock

    def sweep(self) -> None:
        """Remove the runs whose idle time is over, without waiting for the janitor."""
        self._directory.owner.check()
        with self._changed:
            self._remove_expired()

    def _remove_expired(self) -> float | None:
        """Remove expired runs. Return the seconds until the next one expires; None if none is idle."""
        now_s = self._clock()
        for entry in self._idle():
            if entry.idle_until_s > now_s:
                return entry.idle_until_s - now_s
            self._remove(entry)
        return None

    def _make_room(self, run: RunFile) -> None:
        """Remove idle runs until this one fits. Raises StorageFull, and removes nothing, if it cannot fit."""
        idle = self._idle()
        used = sum(entry.run.size_bytes for entry in self._entries.values())
        if used - sum(entry.run.size_bytes for entry in idle) + run.size_bytes > self._max_bytes:
            raise StorageFull(
                "a run does not fit into the cache",
                hint="Raise max_bytes, or read without a cache",
                path=run.path,
                size_bytes=run.size_bytes,
                max_bytes=int(self._max_bytes),
            )
        for entry in idle:
            if used + run.size_bytes <= self._max_bytes:
                return
            used -= entry.run.size_bytes
            self._remove(entry)

    def _idle(self) -> list[_Entry]:
        """Return the runs without readers, the longest idle first."""
        return sorted((e for e in self._entries.values() if not e.readers), key=lambda e: e.idle_until_s)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.run.path]
        self._directory.delete(entry.file)
        self._count(removed=1)

    def _drop(self, entry: _Entry) -> None:
        """Drop this copy from the map, if it is still there. It is deleted with its last reader."""
        if self._entries.get(entry.run.path) is entry:
            if entry.readers:
                del self._entries[entry.run.path]
            else:
                self._remove(entry)

    def _cleanup(self) -> None:
        with self._changed:
            while not self._closed:
                delay_s = self._remove_expired()
                self._changed.wait(None if delay_s is None else min(delay_s, _LONGEST_WAIT_S))

    # ---- statistics and close

    def statistics(self) -> CacheStatistics:
        """Return the current numbers."""
        self._directory.owner.check()
        with self._changed:
            entries = self._entries.values()
            return self._counts._replace(
                files=len(entries),
                size_bytes=sum(entry.run.size_bytes for entry in entries),
                readers=sum(entry.readers for entry in entries),
            )

    def close(self) -> None:
        """Remove everything, after downloads in progress have ended. Idempotent; void in a fork.

        Open readers can read on: their file has no name any more, and is freed when they close.
        """
        if self.is_foreign:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(entry.ready.done() for entry in self._entries.values()))
            self._entries.clear()
            self._directory.remove()
            janitor = self._janitor
        if janitor is not None:
            janitor.result()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the cache is closed", hint="Make a new one")

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + n for name, n in more.items()})
