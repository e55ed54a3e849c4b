"""`SharedProducer`: one idempotent librdkafka producer for all producers of a process that have the same settings.

A client has threads and connections of its own, so producers lease it. One thread at a time waits for the client's
answers, without a lock. The others wait until it has stored an answer of theirs, or hands over.

Invariants:
- A client with a record of unknown outcome, an error or a bulk load gets no new lease. So a new producer never has the
  producer id of one whose records may still arrive.
- A client that gets no new lease is closed with its last one; any other after a minute, or with the port.
- No Python runs inside its calls. An interrupt at any line makes no thread wait longer than it asked for.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Protocol

import confluent_kafka

from statelog.kafka.config import ClientConfig, producer_properties
from statelog.kafka.native import ProcessGuard, close_producer, kafka_error, last_error, make_client, native

CONNECT_S = 0.05
"""The head start of a new client to connect. A record queued earlier makes it search a leader while it asks for its
producer id; it then finds no connected broker and sleeps 0.5 s (measured: 505 ms, with this 55 ms)."""
_FRESH_S = 60.0
"""How long idle connections are trusted: less than any load balancer's limit."""
_STUCK_S = 1.0
"""A turn that should have ended so long ago was interrupted; another thread takes over."""
_SERVER = "server"


class ProducerLease(Protocol):
    """A producer that uses a client, in one thread at a time."""

    woken: SimpleQueue[None]
    """Wakes the thread that waits."""
    until_s: float
    """When its turn ends."""

    @property
    def is_answered(self) -> bool:
        """Whether an answer to one of its records is stored."""
        ...

    @property
    def is_bulk(self) -> bool:
        """Whether it sends so much that others would wait for it."""
        ...


class SharedProducer:
    """A client and its leases."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        self.fatal = ""
        """The fatal error that ended it, if any."""
        self.is_retired = False
        """Whether it gets no new lease."""
        self.topics = set[str]()
        self.leases: dict[int, weakref.ref[ProducerLease]] = {}
        self._server: dict[str, ProducerLease] = {}
        self._waiting: dict[int, ProducerLease] = {}
        self._guard = ProcessGuard("producer")
        self.native = make_client(
            confluent_kafka.Producer, "a producer", producer_properties(config), config, self.errors
        )
        self._guard.hold(self.native)
        self.used_s = time.monotonic()
        self.ready_s = self.used_s + CONNECT_S

    @property
    def users(self) -> list[ProducerLease]:
        """The leases that are not closed."""
        return [lease for lease in (there() for there in list(self.leases.values())) if lease is not None]

    @property
    def is_fresh(self) -> bool:
        """Whether it is as good for a lease as a new one with its own producer id."""
        is_sound = not (self.is_retired or self.errors or self.fatal)
        return is_sound and time.monotonic() - self.used_s < _FRESH_S and not any(one.is_bulk for one in self.users)

    @property
    def last_error(self) -> str:
        """The client's last own error."""
        return last_error(self.errors, self.config)

    def serve(self, lease: ProducerLease, timeout_s: float) -> None:
        """Wait at most so long until an answer to the lease is stored."""
        lease.until_s = time.monotonic() + timeout_s
        try:
            try:
                self._serve(lease, timeout_s)
            finally:
                self._leave_turn(lease)
        finally:
            self._leave_turn(lease)  # An interrupt may have cut the first short.

    def _serve(self, lease: ProducerLease, left_s: float) -> None:
        while True:
            if self._takes_turn(lease):
                self._poll(left_s)
            else:
                self._waiting[id(lease)] = lease
                # Checked again: a thread that stored an answer before did not know that this one waits.
                if not lease.is_answered and self._server:
                    with suppress(Empty):
                        lease.woken.get(timeout=left_s) if left_s > 0 else lease.woken.get_nowait()
            left_s = lease.until_s - time.monotonic()
            if left_s <= 0 or self.fatal or lease.is_answered:
                return

    def _takes_turn(self, lease: ProducerLease) -> bool:
        server = self._server.setdefault(_SERVER, lease)
        if server is not lease and time.monotonic() > server.until_s + _STUCK_S:
            server = self._server[_SERVER] = lease
        return server is lease

    def _poll(self, timeout_s: float) -> None:
        try:
            if native(self.native.poll, timeout_s) > 0:
                self.used_s = time.monotonic()
        except confluent_kafka.KafkaException as refused:
            self.end("{}: {}".format(*kafka_error(refused, self.config)))
        if not self.fatal and any(error.fatal() for error in list(self.errors)):
            self.end(self.last_error)
        for key, other in list(self._waiting.items()):
            if (other.is_answered or self.fatal) and self._waiting.pop(key, None) is not None:
                other.woken.put(None)

    def _leave_turn(self, lease: ProducerLease) -> None:
        """End the turn, and wake one thread that waits."""
        self._waiting.pop(id(lease), None)
        if self._server.get(_SERVER) is lease:
            self._server.pop(_SERVER, None)
        for key, other in [] if self._server else list(self._waiting.items()):
            if self._waiting.pop(key, None) is not None:
                other.woken.put(None)
                return

    def end(self, reason: str) -> None:
        """Note that the client reported a fatal error."""
        self.is_retired, self.fatal = True, reason

    def destroy(self) -> None:
        """Release the client."""
        self._guard.close()
        close_producer(self.native)


class _Clients:
    """The shared clients of this process. The lock is reentrant, because a signal handler may interrupt any line."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.made: list[SharedProducer] = []

    def lease(self, config: ClientConfig, lease: ProducerLease, *, alone: bool = False) -> SharedProducer:
        """Return a fresh client, or make one. `alone`: make one that gets no other lease."""
        with self.lock:
            found = [one for one in self.made if one.config == config and one.is_fresh and not alone]
            client = found[0] if found else SharedProducer(config)
            client.is_retired |= alone
            client.leases[id(lease)] = weakref.ref(lease)
            if not found:
                self.made.append(client)
        self._destroy([one for one in self.made if not (one.users or one.is_fresh)])
        return client

    def leave(self, client: SharedProducer, lease: ProducerLease, *, keeps: bool) -> None:
        """End a lease, and its client if that has no more use."""
        client.leases.pop(id(lease), None)
        if not (client.users or (keeps and client.is_fresh)):
            self._destroy([client])

    def close(self, config: ClientConfig) -> None:
        """Release the clients of these settings without a lease."""
        self._destroy([one for one in self.made if one.config == config and not one.users])

    def _destroy(self, idle: Sequence[SharedProducer]) -> None:
        for client in idle:
            with self.lock:
                is_mine = client in self.made and not client.users
                if is_mine:
                    self.made.remove(client)
            if is_mine:
                client.destroy()

    def retire(self, config: ClientConfig, topic: str) -> None:
        """Give no new lease to clients that have sent to this topic, which was made or deleted."""
        for client in list(self.made):
            if client.config == config and topic in client.topics:
                client.is_retired = True

    def forget(self) -> None:
        """Start again in a forked child: these clients are the parent's, and so is the lock."""
        self.lock, self.made = RLock(), []


CLIENTS = _Clients()
os.register_at_fork(after_in_child=CLIENTS.forget)
