"""`RunCache`: runs on the local disk, their readers, and when they are removed. Never decodes a run.

The first reader of a run downloads it, in its own thread; later ones wait for that download. A run without
readers stays for `idle_s` after its last reader, in case that one more recovery wants it.

    <base>/attempt-<uuid>/<uuid>.run      a whole, verified run; or .partial, a download on its way, never read

An attempt is one cache in one process; what dead attempts left is swept when the next one begins.

Invariants:
- A file is readable under its name if and only if its length and its sha256 are those of its manifest.
- One lock guards the map and the counts. Look-up and retain, release, and remove each are one critical section, so no
  file goes between the look at its count and its removal. Nobody downloads or waits for a download with the lock held.
- A download that failed is not in the map: those who waited get its error, and the next one to ask tries again.
- A reader counts once, however often it is closed.
- After `close` there is no file, no directory and no thread of this cache. In a fork nothing is written or deleted.
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
    """Runs are read from local copies, shared by all recoveries of a log in this process.

    directory  where the copies lie, on a local disk; many processes and logs may share one
    idle_s     how long a copy stays after its last reader, as long as anybody holds the cache; 0 removes it at once
    max_bytes  the most that the copies of one log in one process may take, None for no bound; idle ones go first, those
               idle longest before others

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
    """The directory of this attempt, at `path`, in `base`, where what dead attempts left is swept. Belongs to the
    process that makes it, `owner`. Raises StoreUnavailable, StorageFull; what cannot be swept is a log line.
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
        """A name that no file has or had."""
        return self.path / f"{self._new_id()}.run"

    def fetch(self, store: Store, run: RunFile, file: Path) -> None:
        """Download a whole run; `file` appears when it is whole and verified, and nothing stays if that fails.

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
        """A reader of a file that was fetched. Raises StoreUnavailable."""
        with local_disk(file, "open", self._disk):
            return file.open("rb")

    def delete(self, file: Path) -> None:
        """Delete a file that was fetched; open readers keep on reading. A log line if it stays."""
        try:
            self._disk("delete", file)
            file.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("a cached run stays until the cache is closed: %s", error)

    def remove(self) -> None:
        """Delete everything. Idempotent; what stays, the next start sweeps."""
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
    """Counts since the cache was made, and what it holds now. A failed download counts as one; `removed` are files."""

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
    """A run that is here or on its way. `readers` counts those who wait for it, too."""

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
        """Close the file and count the reader out, whatever closing says."""
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
        """A reader of a run, which is downloaded from the store if it is not here; close it, or use `with`.

        Raises NotFound, CorruptRun (also if the copy that was here cannot be opened; the next one to ask downloads
        anew), StoreUnavailable, StorageFull (the local disk, or `max_bytes`), ClosedError.
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
        """Hand out the copy that is here no more. It goes with its last reader; the next one to ask downloads anew."""
        self._directory.owner.check()
        with self._changed:
            entry = self._entries.get(run.path)
            if entry is not None and entry.ready.done():
                self._drop(entry)

    def _retain(self, run: RunFile, begun: list[_Entry]) -> _Entry:
        """The run's entry with one more reader. It is `begun` for this one, who has to download, if there was none."""
        with self._changed:
            self._check_open()
            entry = self._entries.get(run.path)
            if entry is None:
                self._make_room(run)
                entry = _Entry(run, self._directory.new_file())
                begun.append(entry)  # First: what is in the map, and nobody downloads, would be waited for without end.
                self._entries[run.path] = entry
            entry.readers += 1
            self._count(opened=1)
            return entry

    def _break_off(self, begun: Sequence[_Entry]) -> None:
        """The error that is being handled, Ctrl-C say, ended the opening: who waits for the download is told."""
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

    # ---- removing; the lock is held by whoever calls what starts with an underscore

    def sweep(self) -> None:
        """Remove the runs whose idle time is over now, without waiting for the janitor."""
        self._directory.owner.check()
        with self._changed:
            self._remove_expired()

    def _remove_expired(self) -> float | None:
        """Remove what is due, and return the seconds until the next run is; None if none is idle."""
        now_s = self._clock()
        for entry in self._idle():
            if entry.idle_until_s > now_s:
                return entry.idle_until_s - now_s
            self._remove(entry)
        return None

    def _make_room(self, run: RunFile) -> None:
        """Remove idle runs until this one fits. Raises StorageFull, and removes nothing, if it cannot."""
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
        """The runs without readers, the longest idle first."""
        return sorted((e for e in self._entries.values() if not e.readers), key=lambda e: e.idle_until_s)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.run.path]
        self._directory.delete(entry.file)
        self._count(removed=1)

    def _drop(self, entry: _Entry) -> None:
        """Hand this copy out no more, if it still is; with readers it goes with the last of them."""
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

    # ---- life

    def statistics(self) -> CacheStatistics:
        """Numbers of this moment."""
        self._directory.owner.check()
        with self._changed:
            entries = self._entries.values()
            return self._counts._replace(
                files=len(entries),
                size_bytes=sum(entry.run.size_bytes for entry in entries),
                readers=sum(entry.readers for entry in entries),
            )

    def close(self) -> None:
        """Remove everything, after downloads on their way have ended. Idempotent; does nothing in a fork.

        Readers that are still open keep on reading: their file has no name any more, and goes with them.
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
