"""How a run is opened for reading: on the log's store, or as a local copy in a cache, one per log and process, opened
by its first user and closed by its last.

    settings = RecoverySettings(cache=CacheSettings(directory=Path("/var/cache/statelog")))
    with RunOpener(log, settings.cache):  # holds the cache over all recoveries inside
        ...

Invariants:
- What an opener hands out reads the bytes of that run and nothing else; who decodes them verifies them.
- Get-or-make, and leaving, are one critical section each. What its last user left is in no map any more.
- A log's users in one process agree on the settings of its cache.
- A fork starts without any cache; it never touches its parent's.
"""

import logging
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, Self

from statelog.closing import Closing
from statelog.errors import ConfigError, CorruptRun, Misuse, StatelogError, StorageFull
from statelog.recovery.run_cache import CacheDirectory, CacheStatistics, RunCache, check_limits
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.runs import RunFile
from statelog.storage.log.log import Log

_LOG = logging.getLogger("statelog.recovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Runs are read from local copies, shared by all recoveries of a log in this process.

    directory  where the copies lie, on a local disk; many processes and logs may share one
    idle_s     how long a copy stays after its last reader, as long as anybody holds the cache
    max_bytes  the most that the copies of one log in one process may take; None for no bound

    Raises ConfigError.
    """

    directory: Path
    idle_s: float = 600.0
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limits(idle_s=self.idle_s, max_bytes=self.max_bytes)


class RunOpener(Closing):
    """Opens the runs of a log for one recovery: as copies in the log's cache while it is held, or without `settings` on
    the store. Not for several owners at once. After `close` it can be held again; what is open stays readable.

    A full disk, a full cache and a copy that does not verify cost a log line, and the run is read from the store
    itself: whether the file there is damaged, only its own reader can say. A run whose copy turned out damaged later is
    read from the store from then on, so that no run can fail twice because of its copies.
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
        """Join the log's cache, if there is one. Idempotent. Raises ConfigError, StoreUnavailable; a full disk is a log
        line only.
        """
        self._is_held = True
        try:
            self._cache()
        except StorageFull as error:
            _warn(error)

    def open(self, run: RunFile) -> AbstractContextManager[BinaryIO]:
        """A seekable reader. Raises NotFound, StoreUnavailable, ConfigError.

        From any thread. One that comes after `close` reads from the store, so that it joins nothing behind its owner.
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

    def distrust(self, run: RunFile) -> bool:
        """Hand the present copy out no more, with a log line. False if the store's own file was read."""
        if run.path not in self._copied:
            return False
        self._copied.discard(run.path)
        self._distrusted.add(run.path)
        if self._joined is not None:
            self._joined.distrust(run)
        _LOG.warning("the local copy of %s is damaged: reading the run from the store", run.path)
        return True

    def statistics(self) -> CacheStatistics:
        """Numbers of the shared cache. Raises Misuse while it is not held."""
        if self._joined is None:
            raise Misuse("this opener holds no cache", hint="Ask while it is held")
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
    """Which log: the same name on another root or cluster is another one."""

    identity: LogIdentity
    name: str
    url: str


@dataclass(slots=True)
class _Shared:
    cache: RunCache
    settings: CacheSettings
    users: int = 0


_caches: dict[_Key, _Shared] = {}
"""The caches of this process; `_lock` guards them."""
_lock = Lock()


def _join(key: _Key, settings: CacheSettings) -> RunCache:
    with _lock:
        shared = _caches.get(key)
        if shared is None:
            directory = CacheDirectory.create(settings.directory)
            cache = RunCache(directory, idle_s=settings.idle_s, max_bytes=settings.max_bytes)
            shared = _caches[key] = _Shared(cache, settings)
        elif shared.settings != settings:
            raise ConfigError(
                "the log's cache is in use with other settings",
                log=key.name,
                in_use=str(shared.settings),
                asked=str(settings),
                hint="Give all recoveries of a log in one process the same cache settings",
            )
        shared.users += 1
        return shared.cache


def _leave(key: _Key, cache: RunCache) -> None:
    with _lock:
        shared = _caches[key]
        shared.users -= 1
        if shared.users:
            return
        del _caches[key]
    cache.close()


def _start_anew() -> None:
    """In a forked child: the parent's map is not ours, and its lock may be held by a thread that is not here."""
    global _lock  # noqa: PLW0603 - a lock that nobody here can release has to be replaced
    _lock = Lock()
    _caches.clear()


os.register_at_fork(after_in_child=_start_anew)
