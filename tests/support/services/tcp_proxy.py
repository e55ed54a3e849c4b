"""A TCP proxy between Kafka clients and one broker, which does what networks do, to the request that a test names.

It reads the header of Kafka's requests and nothing more: size, API key, correlation id. So a test can say "the second
ListOffsets request from now on is reset", and it is that one and no other, whatever the client sends besides. It
listens on loopback; the broker must advertise its address. Threads end with `close`; nothing here outlives it.
"""

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["API_KEYS", "Deed", "TcpProxy"]

API_KEYS = {
    "produce": 0, "fetch": 1, "list_offsets": 2, "metadata": 3, "find_coordinator": 10, "api_versions": 18,
    "create_topics": 19, "delete_topics": 20, "delete_records": 21, "init_producer_id": 22, "describe_configs": 32,
    "offset_commit": 8, "offset_fetch": 9, "describe_cluster": 60, "describe_topics": 3,
}  # fmt: skip
_HEADER = 12
_SLICE_BYTES = 7
_PIECE_BYTES = 16 << 10


class Deed(Enum):
    """What happens to a request."""

    RESET = "reset"
    """It never arrives, and its connection is reset."""
    SWALLOW = "swallow"
    """It never arrives, and its connection stays."""
    LOSE = "lose"
    """The broker does it; instead of the answer comes a reset."""
    CUT = "cut"
    """The broker does it; half of the answer comes, then a reset."""
    MUTE = "mute"
    """The broker does it; the answer never comes, and the connection stays."""
    DELAY = "delay"
    """The answer comes `delay_s` later."""
    SLICE = "slice"
    """The answer comes a few bytes at a time."""


@dataclass(slots=True)
class _Rule:
    deed: Deed
    api_key: int
    at: int
    count: int
    delay_s: float


class TcpProxy:
    """Listens at once, on `port`; forwards to the broker at `upstream`, host and port."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.hits = 0
        """How many requests something was done to."""
        self.seen: Counter[int] = Counter()
        """Requests by API key since `reset`."""
        self.bytes_per_s = 0
        """How many bytes of requests pass in a second; 0: all."""
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._frozen: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    @property
    def bootstrap(self) -> str:
        """host:port of the proxy."""
        return f"127.0.0.1:{self.port}"

    def on(self, api: str, deed: Deed, *, at: int = 1, count: int = 1, delay_s: float = 0.0) -> None:
        """Do this to request number `at` of this API from now on, counted from 1, and to the `count` - 1 behind it."""
        with self._lock:
            self._rules.append(_Rule(deed, API_KEYS[api], at, count, delay_s))

    def black_hole(self, *, is_on: bool) -> None:
        """Let nothing through in either direction, with all connections open; or let it flow again."""
        if is_on:
            self._open.clear()
        else:
            self._open.set()

    def freeze(self) -> None:
        """Let nothing more through on the connections that are open; new ones work. For good: `cut_all` ends them."""
        with self._lock:
            self._frozen |= self._sockets

    def is_frozen(self, one: socket.socket) -> bool:
        """Whether nothing more passes on this connection."""
        return one in self._frozen

    def reset(self) -> None:
        """Forget all rules and counts, and let everything flow."""
        with self._lock:
            self._rules.clear()
            self.seen.clear()
            self.hits = 0
        self.bytes_per_s = 0
        self._open.set()

    def cut_all(self) -> None:
        """Reset every connection."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _abort(one)

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self._closed = True
        self._open.set()
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
        _Connection(self, client, broker).run()
        with self._lock:
            self._sockets -= {client, broker}
            self._frozen -= {client, broker}

    def flow(self, size: int) -> None:
        """Wait until so many bytes may pass."""
        self._open.wait()
        if self.bytes_per_s:
            time.sleep(size / self.bytes_per_s)

    def deed(self, api_key: int) -> _Rule | None:
        """What is to be done to a request that has just come."""
        with self._lock:
            self.seen[api_key] += 1
            for rule in self._rules:
                if rule.api_key != api_key:
                    continue
                rule.at -= 1
                if rule.at <= 0 and rule.count > 0:
                    rule.count -= 1
                    self.hits += 1
                    return rule
        return None


class _Connection:
    """One client's connection, with one thread for each direction."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._deeds: dict[int, _Rule] = {}

    def run(self) -> None:
        """Forward until one side ends."""
        back = threading.Thread(target=self._pump, args=(self._answers,), daemon=True, name="proxy")
        back.start()
        self._pump(self._requests)
        back.join()
        self._client.close()
        self._broker.close()

    def _pump(self, step: Callable[[], bool]) -> None:
        with contextlib.suppress(OSError):
            while step():
                pass
        for one in (self._client, self._broker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _requests(self) -> bool:
        frame = _frame(self._client)
        if frame is None:
            return False
        if self._proxy.is_frozen(self._client):
            return True
        rule = None
        if len(frame) >= _HEADER:
            _, api_key, _, correlation = struct.unpack(">ihhi", frame[:_HEADER])
            rule = self._proxy.deed(api_key)
            if rule is not None and rule.deed is Deed.SWALLOW:
                return True
            if rule is not None and rule.deed is Deed.RESET:
                _abort(self._client)
                return False
            if rule is not None:
                self._deeds[correlation] = rule
        for at in range(0, len(frame), _PIECE_BYTES):
            piece = frame[at : at + _PIECE_BYTES]
            self._proxy.flow(len(piece))
            self._broker.sendall(piece)
        return True

    def _answers(self) -> bool:
        frame = _frame(self._broker)
        if frame is None:
            return False
        self._proxy.flow(0)
        if self._proxy.is_frozen(self._client):
            return True
        (correlation,) = struct.unpack(">i", frame[4:8])
        rule = self._deeds.pop(correlation, None)
        match rule.deed if rule else None:
            case Deed.MUTE:
                return True
            case Deed.LOSE | Deed.CUT:
                if rule is not None and rule.deed is Deed.CUT:
                    self._client.sendall(frame[: len(frame) // 2])
                _abort(self._client)
                return False
            case Deed.SLICE:
                for at in range(0, len(frame), _SLICE_BYTES):
                    self._client.sendall(frame[at : at + _SLICE_BYTES])
                return True
            case Deed.DELAY:
                time.sleep(rule.delay_s if rule else 0.0)
            case _:
                pass
        self._client.sendall(frame)
        return True


def _frame(source: socket.socket) -> bytes | None:
    """The next frame with its size, or None at the end."""
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


def _abort(one: socket.socket) -> None:
    """Reset a connection: no orderly end, nothing that was not sent yet."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        one.close()
