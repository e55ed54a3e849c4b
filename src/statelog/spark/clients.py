"""Clients that live as long as a worker process: opened logs, producers, coordinators.

Spark reuses a worker for many tasks and batches; a new Kafka client for each of them costs half a second. Spark
runs one task at a time in a worker, so there are no locks. Caches are never pickled.

Invariants:
- Cached clients belong to the process that made them. A fork starts with an empty cache, and closes no client of its
  parent.
- After an error the client in use is dropped: the next user gets a new one.
"""

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from statelog.closing import undone_by_errors
from statelog.errors import IdentityChanged
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.port import Producer
from statelog.log import Log, Where
from statelog.log.measured import watched_producer
from statelog.operate.exporting import export_from_worker
from statelog.schemas.ledger.place import LogIdentity, shown_id
from statelog.schemas.topic_policy import ROUND
from statelog.spark.option_texts import LogAddress

IDLE_S = 600.0
"""Clients that were idle for so long are closed at the next use of the cache: a process may serve many jobs."""


class _Closable(Protocol):
    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Closable)
P = TypeVar("P")


class ProcessCache(Generic[K, V]):
    """A cache that closes values that are idle for `idle_s`, and all of them when the process ends."""

    def __init__(self, *, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = os.getpid()
        self._entries: dict[K, tuple[V, float]] = {}
        self._idle_s = idle_s
        self._clock = clock
        atexit.register(self.clear)

    def get(self, key: K) -> V | None:
        """Return the value cached under `key`, or None."""
        _spare_collections()
        self._forget_parent()
        now_s = self._clock()
        for idle in [one for one, (_, used_s) in self._entries.items() if now_s - used_s > self._idle_s]:
            self.drop(idle)
        if key not in self._entries:
            return None
        value, _ = self._entries[key]
        self._entries[key] = value, now_s
        return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value cached under `key`, or make and cache one."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def put(self, key: K, value: V) -> V:
        """Cache `value`, and close the one before."""
        self.drop(key)
        self._entries[key] = value, self._clock()
        return value

    def drop(self, key: K) -> None:
        """Close and remove the value under `key`, if there is one."""
        self._forget_parent()
        if key in self._entries:
            value, _ = self._entries.pop(key)
            value.close()

    def clear(self) -> None:
        """Close and remove all values."""
        for key in list(self._entries):
            self.drop(key)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._entries = os.getpid(), {}


_logs: ProcessCache[LogAddress, Log] = ProcessCache()
_producers: ProcessCache[Where, Producer] = ProcessCache()


def cached_log(where: LogAddress, identity: LogIdentity | None = None) -> Log:
    """Return the opened log of this process; open it again if its identity is not the planned `identity`.

    Raises IdentityChanged if the planned log no longer exists, and the errors of `open_log`.
    """
    log = _logs.get_or_make(where, lambda: open_log(where))
    if identity not in (None, log.descriptor.identity):
        reopened = open_log(where)
        if reopened.descriptor.identity == log.descriptor.identity:
            reopened.close()  # The plan is outdated, not the cached log, which others in this process use.
        else:
            log = _logs.put(where, reopened)
    if identity is not None and identity != log.descriptor.identity:
        raise IdentityChanged(
            "this was planned on topics that the log had before",
            log=log.name,
            expected=shown_id(identity.ledger_topic_id),
            found=shown_id(log.descriptor.identity.ledger_topic_id),
            hint="load() again, or start the query or write again",
        )
    return log


def checked_log(where: LogAddress) -> Log:
    """Return the opened log of this process, for callers that would not notice that it was re-created."""

    def checked() -> Log:
        log = cached_log(where)
        log.manifests.newest()
        return log

    return planned(where, checked)


def planned(where: LogAddress, plan: Callable[[], P]) -> P:
    """Return the result of `plan`. Call it again if the log was re-created under its name since it was opened."""
    try:
        return plan()
    except IdentityChanged:
        _logs.drop(where)
        return plan()


@contextmanager
def task_producer(where: LogAddress) -> Generator[Producer]:
    """Yield the producer of this process for one task.

    After an error or an interrupt the next task gets a new one: records still in flight must not be mistaken for its.
    """
    export_from_worker()
    config = where.where.client_config()
    producer = _producers.get_or_make(where.where, lambda: ConfluentKafka(config).producer())
    with undone_by_errors(_producers.drop, where.where):
        yield watched_producer(producer, where.log)


def open_log(where: LogAddress) -> Log:
    """Open the log, for this caller only, with the checks of a round. Other uses are checked later.

    Raises NotFound, ConfigError, Damaged, UnsafeTopic, Unavailable.
    """
    export_from_worker()
    return Log.open(*where, ROUND)


_frozen_modules = 0


def _spare_collections() -> None:
    """Exclude imported modules from garbage collection, in Spark's workers.

    pyspark's daemon makes its workers collect all garbage after every task. Traversing a hundred thousand objects of
    modules takes 60 ms and more, which is longer than most small tasks.
    """
    global _frozen_modules  # noqa: PLW0603  # the collector is the process's, and so is this
    main = sys.modules["__main__"].__spec__
    if main is not None and main.name == "pyspark.daemon" and len(sys.modules) != _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.freeze()
