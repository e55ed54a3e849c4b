"""Clients that live as long as the worker process: opened logs, producers, epochs, committers.

Spark reuses a worker for many tasks and batches; a new Kafka client for each of them costs half a second. Spark
runs one task at a time in a worker, so nothing here is locked, and nothing here is ever pickled.

Invariants:
- What is cached belongs to the process that made it. In a fork the cache looks empty, and nothing of the parent's is
  closed there.
- Whoever met an error drops what it used: the next user gets a client without a past.
"""

import atexit
import os
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from statelog.spark.options import LogOptions
from statelog.storage.kafka import Producer
from statelog.storage.kafka_client import ConfluentKafka
from statelog.storage.kafka_config import client_config
from statelog.storage.log import Log

__all__ = ["ProcessCache", "cached_log", "task_producer"]

_MOST = 8  # Entries of a cache; a process that serves more jobs than that opens clients again.


class _Closable(Protocol):
    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Closable)


class ProcessCache(Generic[K, V]):
    """A small cache of things to close, least recently used first out, emptied when the process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._entries: dict[K, V] = {}
        atexit.register(self.clear)

    def get(self, key: K) -> V | None:
        """What is cached under `key`, or None."""
        self._forget_parent()
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found
        return found

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """What is cached under `key`, made now if nothing is."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def put(self, key: K, value: V) -> V:
        """Cache `value`, closing what was there before, and the entry that was not used for longest if it is full."""
        self.drop(key)
        self._entries[key] = value
        if len(self._entries) > _MOST:
            self.drop(next(iter(self._entries)))
        return value

    def drop(self, key: K) -> None:
        """Close and forget what is cached under `key`, if anything."""
        self._forget_parent()
        found = self._entries.pop(key, None)
        if found is not None:
            found.close()

    def clear(self) -> None:
        """Close and forget everything."""
        self._forget_parent()
        for key in list(self._entries):
            self.drop(key)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._entries = {}


_logs: ProcessCache[LogOptions, Log] = ProcessCache()
_producers: ProcessCache[tuple[tuple[str, str], ...], Producer] = ProcessCache()


def cached_log(where: LogOptions) -> Log:
    """The opened log of this process. Raises as `Log.open`."""
    return _logs.get_or_make(where, lambda: _open(where))


@contextmanager
def task_producer(where: LogOptions) -> Generator[Producer]:
    """The producer of this process for one task. After an error, or if the task is cut short, the next gets a new one:
    what this one still has in flight must not be mistaken for anybody else's.
    """
    producer = _producers.get_or_make(where.kafka, lambda: ConfluentKafka(client_config(dict(where.kafka))).producer())
    try:
        yield producer
    except BaseException:
        _producers.drop(where.kafka)
        raise


def _open(where: LogOptions) -> Log:
    return Log.open(
        where.log,
        kafka=dict(where.kafka),
        root=where.root,
        allow_unsafe=where.allow_unsafe,
        storage_options=where.storage_options(),
    )
