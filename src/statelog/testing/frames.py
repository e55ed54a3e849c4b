"""Kafka's frames on their way between clients and one broker: what every proxy of tests is made of.

A proxy listens on loopback, and each connection of a client has one of its own to the broker, with a thread for each
direction. What becomes of a frame is said by the `Link` of a connection. Nothing outlives `close`.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable


class Link:
    """One client's connection. A step hands on one frame, and says whether there may be more."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker

    def run(self) -> None:
        """Hand on until one side ends."""
        back = threading.Thread(target=self._pump, args=(self.answers,), daemon=True, name="proxy")
        back.start()
        self._pump(self.requests)
        back.join()
        self.client.close()
        self.broker.close()

    def requests(self) -> bool:
        """Hand on the client's next request."""
        frame = read_frame(self.client)
        if frame is not None:
            self.broker.sendall(frame)
        return frame is not None

    def answers(self) -> bool:
        """Hand on the broker's next answer."""
        frame = read_frame(self.broker)
        if frame is not None:
            self.client.sendall(frame)
        return frame is not None

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
    """Listens at once, on `port`; `link` makes what hands on between a client and the broker at `upstream`."""

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
        """Those of the connections that are open, on both sides."""
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
            self._link(client, broker).run()
        finally:
            with self._lock:
                self._sockets -= {client, broker}


def read_frame(source: socket.socket) -> bytes | None:
    """The next frame with its size, or None at the end. Raises OSError."""
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
    """Reset a connection: no orderly end, nothing that was not sent yet."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        one.close()
