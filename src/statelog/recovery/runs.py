"""`RunOpener`: opens the runs of a plan, on the log's store or as local copies in a cache. Never folds.

There is one cache per log and process, opened by its first user and closed by its last.

    settings = RecoverySettings(cache=CacheSettings(directory=Path("/var/cache/statelog")))
    with RunOpener(log, settings.cache):  # holds the cache over all recoveries inside
        ...

Invariants:
- A reader gives the bytes of its run and nothing else. The decoder verifies them.
- Joining and leaving a cache are one critical section each. A cache without users is in no map.
- A log's users in one process agree on the settings of its cache.
- A fork starts without any cache, and never touches its parent's.
- A missing or damaged run is SnapshotFailed, which distinguishes it from other missing files.
"""

import logging
import os
from contextlib import AbstractContextManager
from threading import Lock
from typing import BinaryIO, NamedTuple, Self

from statelog.closing import Closing
from statelog.errors import ConfigError, CorruptRun, Misuse, NotFound, StatelogError, StorageFull
from statelog.log import Log
from statelog.reading import SnapshotFailed
from statelog.recovery.run_cache import CacheDirectory, CacheSettings, CacheStatistics, RunCache
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.runs import RunFile

_LOG = logging.getLogger("statelog.recovery")


class RunOpener(Closing):
    """Opens the runs of a log for one recovery: as copies in the log's cache while it is held, else on the store.

    Without `settings` there is no cache. It has one owner at a time, can be held again after `close`, and open readers
    stay readable.

    On a full disk, a full cache or a copy that does not verify, it logs a line and reads the run from the store. The
    file there may be intact. After a damaged copy, it always reads that run from the store, so that no run fails twice
    because of its copies.
    """

    def __init__(self, log: Log, settings: CacheSettings | None = None) -> None:
        self._store = log.store
        self._key = _Key(log.descriptor.identity, log.name, log.store.url)
        self._settings = settings
        self._lock = Lock()
        self._is_held = False
        self._joined: RunCache | None = None
        self._copied: set[str] = set()
        self._distrusted: set[str] = set()

    def hold(self) -> None:
        """Join the log's cache, if any. Idempotent. Raises ConfigError, StoreUnavailable; logs a full disk."""
        self._is_held = True
        try:
            self._cache()
        except StorageFull as error:
            _warn(error)

    def open(self, run: RunFile) -> AbstractContextManager[BinaryIO]:
        """Return a seekable reader. Raises NotFound, StoreUnavailable, ConfigError.

        Any thread may call it. After `close` it reads from the store, and joins no cache.
        """
        if run.path in self._distrusted:
            return self._store.open(run.path)
        try:
            cache = self._cache()
            copy = self._store.open(run.path) if cache is None else cache.open(self._store, run)
        except (StorageFull, CorruptRun) as error:
            _warn(error)
            self._copied.discard(run.path)
            return self._store.open(run.path)
        if cache is not None:
            self._copied.add(run.path)
        return copy

    def failed(self, run: RunFile, error: CorruptRun | NotFound, manifest: int | None = None) -> SnapshotFailed:
        """Make the error for a missing or damaged run. A damaged copy is dropped, with a log line."""
        if isinstance(error, NotFound):
            error = NotFound(
                "a run that the snapshot names is missing",
                log=self._key.name,
                manifest=manifest,
                path=run.path,
                url=self._store.url,
                hint="Restore it from a copy of the store, or recover an older snapshot while the log reaches back",
            )
        is_copy = run.path in self._copied
        if is_copy:
            self._copied.discard(run.path)
            self._distrusted.add(run.path)
            if self._joined is not None:
                self._joined.distrust(run)
            _LOG.warning("the local copy of %s is damaged: reading the run from the store", run.path)
        return SnapshotFailed(error, is_copy=is_copy)

    def statistics(self) -> CacheStatistics:
        """Return the numbers of the shared cache. Raises Misuse while it is not held."""
        if self._joined is None:
            raise Misuse("this opener holds no cache", hint="Call it while the cache is held")
        return self._joined.statistics()

    def close(self) -> None:
        """Leave the cache; its last user closes it. Idempotent."""
        with self._lock:
            self._is_held = False
            cache, self._joined = self._joined, None
        if cache is not None and not cache.is_foreign:
            _leave(self._key, cache)

    def __enter__(self) -> Self:
        self.hold()
        return self

    def _cache(self) -> RunCache | None:
        with self._lock:
            if self._settings is None or not self._is_held:
                return None
            if self._joined is None or self._joined.is_foreign:
                self._joined = _join(self._key, self._settings)
            return self._joined


def _warn(error: StatelogError) -> None:
    _LOG.warning("runs are read without the cache: %s", error)


class _Key(NamedTuple):
    """The identity of a log: the same name on another root or cluster is another log."""

    identity: LogIdentity
    name: str
    url: str


_caches: dict[_Key, tuple[RunCache, int]] = {}
"""The caches of this process with their number of users; `_lock` guards them."""
_lock = Lock()


def _join(key: _Key, settings: CacheSettings) -> RunCache:
    with _lock:
        cache, users = _caches.get(key, (None, 0))
        if cache is None:
            cache = RunCache(CacheDirectory(settings.directory), settings)
        elif cache.settings != settings:
            raise ConfigError(
                "the log's cache is in use with other settings",
                log=key.name,
                in_use=str(cache.settings),
                asked=str(settings),
                hint="Give all recoveries of a log in one process the same cache settings",
            )
        _caches[key] = cache, users + 1
        return cache


def _leave(key: _Key, cache: RunCache) -> None:
    with _lock:
        _, users = _caches.pop(key)
        if users > 1:
            _caches[key] = cache, users - 1
            return
    cache.close()


def _reset_in_fork() -> None:
    """Forget the parent's caches in a forked child. A thread that does not exist here may hold the parent's lock."""
    global _lock  # noqa: PLW0603 - a lock that nobody here can release has to be replaced
    _lock = Lock()
    _caches.clear()


os.register_at_fork(after_in_child=_reset_in_fork)
