"""An S3 service of the run, behind a proxy that delays each request and counts the requests.

The proxy shifts answers in time and does not slow their bytes: a client with several requests in flight gains from
that, as with a remote store. Of a request it reads the first line and the length of the body.
"""

import asyncio
import multiprocessing
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.services.s3 import S3Service, open_s3

__all__ = ["SlowStore", "slow_store"]

_PIECE_BYTES = 256 << 10
_START_TIMEOUT_S = 60
_WRITES = frozenset({"PUT", "POST", "LIST"})
"""The requests that stores bill as writes, including listings: each costs as much as a dozen reads."""


class SlowStore:
    """The address of the store, and the control of its proxy, which is a separate process."""

    def __init__(self, service: S3Service, port: int, control: Connection) -> None:
        self.root = f"s3://{service.bucket}/bench"
        self.storage_options = {**service.options, "endpoint_url": f"http://127.0.0.1:{port}"}
        self._control = control

    def slow_down(self, request_s: float) -> None:
        """Delay each answer by this time from now on, and reset the counts."""
        self._ask(request_s)

    @property
    def asked(self) -> Counter[str]:
        """Count the requests since `slow_down` by operation: GET, HEAD, LIST, PUT, POST, DELETE."""
        return Counter(self._ask(None))

    @property
    def billed(self) -> tuple[int, int]:
        """Count the requests that a store bills as writes, and as reads; deletes are free."""
        asked = self.asked
        writes = sum(count for operation, count in asked.items() if operation in _WRITES)
        return writes, asked.total() - writes - asked["DELETE"]

    def _ask(self, request_s: float | None) -> Any:
        self._control.send(request_s)
        return self._control.recv()


@contextmanager
def slow_store(service: S3Service | None = None) -> Generator[SlowStore]:
    """Start a proxy for a service, by default one in Docker."""
    with ExitStack() as stack:
        service = service or open_s3(stack)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_run_proxy, args=(service.endpoint, theirs), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
        assert ours.poll(_START_TIMEOUT_S), "the proxy did not start"
        yield SlowStore(service, ours.recv(), ours)


class _Proxy:
    """The state that all connections share."""

    def __init__(self, endpoint: str) -> None:
        place = urlsplit(endpoint)
        self.host, self.port = str(place.hostname), int(place.port or 80)
        self.request_s = 0.0
        self.asked: Counter[str] = Counter()

    def obey(self, control: Connection) -> None:
        """Execute commands from the pipe until its other end is closed."""
        with suppress(EOFError):
            while True:
                request_s = control.recv()
                if request_s is not None:
                    self.request_s, self.asked = request_s, Counter()
                control.send(dict(self.asked))


def _run_proxy(endpoint: str, control: Connection) -> None:
    asyncio.run(_serve(_Proxy(endpoint), control))


async def _serve(proxy: _Proxy, control: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _relay(proxy, reader, writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    control.send(server.sockets[0].getsockname()[1])
    threading.Thread(target=proxy.obey, args=(control,), daemon=True).start()
    await server.serve_forever()


async def _relay(proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until either side ends it."""
    async with _connection(proxy.host, proxy.port) as (answers, questions):
        sides = [
            asyncio.create_task(_questions(proxy, reader, questions)),
            asyncio.create_task(_answers(proxy, answers, writer)),
        ]
        await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        for side in sides:
            side.cancel()
        writer.close()


@asynccontextmanager
async def _connection(host: str, port: int) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _questions(proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            proxy.asked[_operation(head)] += 1
            writer.write(head)
            left = _body_bytes(head)
            while left:
                piece = await reader.read(min(left, _PIECE_BYTES))
                if not piece:
                    return
                left -= len(piece)
                writer.write(piece)
                await writer.drain()


def _operation(head: bytes) -> str:
    method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ", 2)
    is_listing = method == "GET" and "list-type" in parse_qs(urlsplit(target).query)
    return "LIST" if is_listing else method


def _body_bytes(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _answers(proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward each piece of the answers after its delay, and receive further pieces meanwhile."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](maxsize=1024)

    async def hand_on() -> None:
        while True:
            due_s, piece = await pieces.get()
            if not piece:
                return
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(piece)
            await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hand_on())
        while piece := await reader.read(_PIECE_BYTES):
            await pieces.put((loop.time() + proxy.request_s, piece))
        await pieces.put((0.0, b""))
