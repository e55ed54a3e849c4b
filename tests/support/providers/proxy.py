"""`ProviderProxy`: a service that differs from Apache's Kafka, played before a real broker.

    with ProviderProxy(broker.bootstrap, CONFLUENT_CLOUD) as proxy:
        where = statelog.Where({"bootstrap.servers": proxy.bootstrap}, root)

Clients find every broker of the cluster here: each that an answer names gets a port of its own. It speaks plain Kafka,
to both sides; clients log in through it. A broker behind it keeps its promises, and so does the proxy: it loses and
delays what networks lose and delay, and never invents a record. `places_late` is the exception, since such a service
does that.

`FrameProxy` is the base of every proxy of the tests. It listens on loopback, and each connection of a client has one of
its own to the broker, with a thread for each direction. Its `Link` decides the fate of a frame. Nothing outlives
`close`.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from statelog.closing import Closing
from tests.support.providers.provider import Provider
from tests.support.providers.terms import API_KEYS, Deal, Head, Place, ServiceTerms, correlation_of, head_of

_PRODUCE = API_KEYS["Produce"]
_FOREVER_S = float("inf")
_LONG_S = 3600.0


class Link:
    """One client's connection. A step forwards one frame, and returns whether there may be more."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker

    def run(self) -> None:
        """Forward until one side ends."""
        back = threading.Thread(target=self._pump, args=(self.answers,), daemon=True, name="proxy")
        back.start()
        self._pump(self.requests)
        back.join()
        self.client.close()
        self.broker.close()

    def requests(self) -> bool:
        """Forward the client's next request."""
        return _hand_on(self.client, self.broker)

    def answers(self) -> bool:
        """Forward the broker's next answer."""
        return _hand_on(self.broker, self.client)

    def _pump(self, step: Callable[[], bool]) -> None:
        try:
            with contextlib.suppress(OSError):
                while step():
                    pass
        finally:
            for one in (self.client, self.broker):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


class FrameProxy:
    """A proxy that listens at once, on `port`; `link` makes the forwarder from a client to the broker at `upstream`."""

    def __init__(self, upstream: tuple[str, int], link: Callable[[socket.socket, socket.socket], Link] = Link) -> None:
        self.upstream = upstream
        self._link = link
        self._lock = threading.Lock()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    @property
    def bootstrap(self) -> str:
        """host:port of the proxy."""
        return f"127.0.0.1:{self.port}"

    @property
    def sockets(self) -> set[socket.socket]:
        """The sockets of the open connections, on both sides."""
        with self._lock:
            return set(self._sockets)

    def cut_all(self) -> None:
        """Reset every connection."""
        for one in self.sockets:
            abort(one)

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True, name="proxy").start()

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self.upstream, timeout=5)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        for one in (client, broker):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets |= {client, broker}
        try:
            if self._closed:  # The proxy closed meanwhile, and `close` may not have seen these two.
                self.cut_all()
            else:
                self._link(client, broker).run()
        finally:
            with self._lock:
                self._sockets -= {client, broker}


def _hand_on(source: socket.socket, sink: socket.socket) -> bool:
    frame = read_frame(source)
    if frame is not None:
        sink.sendall(frame)
    return frame is not None


def read_frame(source: socket.socket) -> bytes | None:
    """Return the next frame with its size, or None at the end. Raises OSError."""
    head = _exactly(source, 4)
    body = _exactly(source, struct.unpack(">i", head)[0]) if head else None
    return head + body if head and body else None


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = source.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def abort(one: socket.socket) -> None:
    """Reset a connection: without an orderly end, and without the bytes that were not sent yet."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        one.close()


class ProviderProxy(Closing):
    """A proxy that listens on loopback at once, before the cluster at `bootstrap`, host:port, by `clock`'s time."""

    def __init__(self, bootstrap: str, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.provider = provider
        self.terms = ServiceTerms(provider, self._door)
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
        """How often the brokers were restarted."""
        return int((self.clock() - self._since_s) / self.provider.rolls_s) if self.provider.rolls_s else 0

    def moved(self, place: Place) -> bool:
        """Return whether a partition has had another leader since the last call."""
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
                self._doors[host, port] = FrameProxy((host, port), partial(_Link, self))
            return "127.0.0.1", self._doors[host, port].port


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
        """Forward the next request, unless the connection is over."""
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
        """Forward the next answer when it is due, unless the connection is over."""
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
