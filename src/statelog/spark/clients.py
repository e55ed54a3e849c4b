"""Clients that live as long as a worker process: opened logs, producers, coordinators.

Spark reuses a worker for many tasks and batches; a new Kafka client for each of them costs half a second. Spark
runs one task at a time in a worker, so nothing here is locked, and nothing here is ever pickled.

Invariants:
- What is cached belongs to the process that made it. In a fork the cache looks empty, and nothing of the parent's is
  closed there.
- After an error the client in use is dropped: the next user gets a fresh one.
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
"""Whatever was not used for so long is closed when the cache is next used: a process may serve any number of jobs."""


class _Closable(Protocol):
    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Closable)
P = TypeVar("P")


class ProcessCache(Generic[K, V]):
    """A cache of things to close: those that rest for `idle_s` go, all go when the process ends."""

    def __init__(self, *, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = os.getpid()
        self._entries: dict[K, tuple[V, float]] = {}
        self._idle_s = idle_s
        self._clock = clock
        atexit.register(self.clear)

    def get(self, key: K) -> V | None:
        """What is cached under `key`, or None."""
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
        """What is cached under `key`, made now if nothing is."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def put(self, key: K, value: V) -> V:
        """Cache `value`, closing what was there before."""
        self.drop(key)
        self._entries[key] = value, self._clock()
        return value

    def drop(self, key: K) -> None:
        """Close and forget what is cached under `key`, if anything."""
        self._forget_parent()
        if key in self._entries:
            value, _ = self._entries.pop(key)
            value.close()

    def clear(self) -> None:
        """Close and forget everything."""
        for key in list(self._entries):
            self.drop(key)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._entries = os.getpid(), {}


_logs: ProcessCache[LogAddress, Log] = ProcessCache()
_producers: ProcessCache[Where, Producer] = ProcessCache()


def cached_log(where: LogAddress, identity: LogIdentity | None = None) -> Log:
    """The opened log of this process; opened again if it is not the one with the `identity` that was planned. Raises
    IdentityChanged if that is gone, and as `open_log`.
    """
    log = _logs.get_or_make(where, lambda: open_log(where))
    if identity not in (None, log.descriptor.identity):
        anew = open_log(where)
        if anew.descriptor.identity == log.descriptor.identity:
            anew.close()  # The plan is the old one: what others of this process made of the log goes on.
        else:
            log = _logs.put(where, anew)
    if identity is not None and identity != log.descriptor.identity:
        raise IdentityChanged(
            "this was planned on topics that the log had before",
            log=log.name,
            expected=shown_id(identity.ledger_topic_id),
            found=shown_id(log.descriptor.identity.ledger_topic_id),
            hint="load() again; a query, or a write, is to be started again",
        )
    return log


def checked_log(where: LogAddress) -> Log:
    """The opened log of this process, for a look that asks nothing else which would tell that it is another one now."""

    def checked() -> Log:
        log = cached_log(where)
        log.manifests.newest()
        return log

    return planned(where, checked)


def planned(where: LogAddress, plan: Callable[[], P]) -> P:
    """What `plan` makes of the opened log; once more if the log was recreated under its name since it was opened."""
    try:
        return plan()
    except IdentityChanged:
        _logs.drop(where)
        return plan()


@contextmanager
def task_producer(where: LogAddress) -> Generator[Producer]:
    """The producer of this process for one task. After an error, or if the task is cut short, the next gets a new one:
    what this one still has in flight must not be mistaken for another's.
    """
    export_from_worker()
    config = where.where.client_config()
    producer = _producers.get_or_make(where.where, lambda: ConfluentKafka(config).producer())
    with undone_by_errors(_producers.drop, where.where):
        yield watched_producer(producer, where.log)


def open_log(where: LogAddress) -> Log:
    """Open the log, for the caller alone. It may be for a round; all others are refused what they have to be later.

    Raises NotFound, ConfigError, Damaged, UnsafeTopic, Unavailable.
    """
    export_from_worker()
    return Log.open(*where, ROUND)


_frozen_modules = 0


def _spare_collections() -> None:
    """Take what was imported out of the garbage collector's sight, in Spark's workers.

    pyspark's daemon has its workers collect all garbage after every task. Walking over a hundred thousand objects that
    live as long as their modules takes 60 ms and more, which is longer than most small tasks.
    """
    global _frozen_modules  # noqa: PLW0603  # the collector is the process's, and so is what it was told
    main = sys.modules["__main__"].__spec__
    if main is not None and main.name == "pyspark.daemon" and len(sys.modules) != _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.freeze()
