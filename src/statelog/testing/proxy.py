"""`ProviderProxy`: a service that does some things otherwise than Apache's Kafka, played before a real broker.

    with ProviderProxy(broker.bootstrap, CONFLUENT_CLOUD) as proxy:
        where = statelog.Where({"bootstrap.servers": proxy.bootstrap}, root)

Clients find every broker of the cluster here: each that an answer names gets a port of its own. It speaks plain Kafka,
to both sides; who logs in does so through it. A broker behind it keeps its promises, and so does the proxy: it loses
and delays what networks lose and delay, and never makes a record up. `places_late` is the exception, for that is what
such a service does.
"""

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from statelog.closing import Closing
from statelog.testing.frames import FrameProxy, Link, abort, read_frame
from statelog.testing.provider import Provider
from statelog.testing.terms import Deal, Place, Terms
from statelog.testing.wire import API_KEYS, Head, correlation_of, head_of

_PRODUCE = API_KEYS["Produce"]
_FOREVER_S = float("inf")
_LONG_S = 3600.0


class ProviderProxy(Closing):
    """Listens on loopback at once, before the cluster at `bootstrap`, host:port. Every question about time goes to
    `clock`.
    """

    def __init__(self, bootstrap: str, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.provider = provider
        self.terms = Terms(provider, self._door)
        self.clock = clock
        self._since_s = clock()
        self._lock = threading.Lock()
        self._doors: dict[tuple[str, int], FrameProxy] = {}
        self._moved: dict[Place, int] = {}
        host, _, port = bootstrap.rpartition(":")
        self._first = self._door(host, int(port))

    @property
    def bootstrap(self) -> str:
        """host:port."""
        host, port = self._first
        return f"{host}:{port}"

    @property
    def rolls(self) -> int:
        """How often the brokers were started anew."""
        return int((self.clock() - self._since_s) / self.provider.rolls_s) if self.provider.rolls_s else 0

    def moved(self, place: Place) -> bool:
        """Whether a partition has had another leader since this was last asked."""
        rolls = self.rolls
        with self._lock:
            before, self._moved[place] = self._moved.get(place, 0), rolls
        return before < rolls

    def close(self) -> None:
        """Stop listening, and end all connections. Idempotent."""
        with self._lock:
            doors = list(self._doors.values())
        for door in doors:
            door.close()

    def _door(self, host: str, port: int) -> tuple[str, int]:
        with self._lock:
            if (host, port) not in self._doors:
                self._doors[host, port] = FrameProxy((host, port), self._link)
            return "127.0.0.1", self._doors[host, port].port

    def _link(self, client: socket.socket, broker: socket.socket) -> Link:
        return _Link(self, client, broker)


class _Asked(NamedTuple):
    head: Head
    deal: Deal
    due_s: float


class _Link(Link):
    def __init__(self, proxy: ProviderProxy, client: socket.socket, broker: socket.socket) -> None:
        super().__init__(client, broker)
        self._proxy = proxy
        self._rolls = proxy.rolls
        self._until_s = proxy.clock() + (proxy.provider.session_s or _FOREVER_S)
        self._quiet_until_s = 0.0
        self._asked: dict[int, _Asked] = {}
        self._poll = select.poll()
        self._poll.register(client, select.POLLIN)

    def requests(self) -> bool:
        """Hand on the next request, unless the connection is over."""
        proxy = self._proxy
        if not self._poll.poll((proxy.provider.idle_s or _LONG_S) * 1000):
            return bool(self._asked) or not proxy.provider.idle_s
        frame = read_frame(self.client)
        if frame is None:
            return False
        now_s = proxy.clock()
        if self._is_over(now_s):
            abort(self.client)
            return False
        _sleep(self._quiet_until_s - now_s)
        deal = proxy.terms.request(frame, proxy.moved if self._rolls else None)
        head = head_of(frame)
        self._asked[head.correlation_id] = _Asked(head, deal, now_s + proxy.provider.latency_s)
        self.broker.sendall(deal.frame)
        return True

    def answers(self) -> bool:
        """Hand on the next answer when it is due, unless the connection is over."""
        proxy = self._proxy
        frame = read_frame(self.broker)
        if frame is None:
            return False
        head, deal, due_s = self._asked[correlation_of(frame)]
        answer = proxy.terms.answer(head, frame, deal.finish)
        _sleep(due_s - proxy.clock())
        if self._rolls < proxy.rolls:
            abort(self.client)
            return False
        if head.api_key == _PRODUCE and proxy.provider.throttle_s:
            self._quiet_until_s = proxy.clock() + proxy.provider.throttle_s
        del self._asked[head.correlation_id]
        self.client.sendall(answer)
        return True

    def _is_over(self, now_s: float) -> bool:
        return now_s >= self._until_s or self._rolls < self._proxy.rolls


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
