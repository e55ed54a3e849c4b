"""An S3 service of the run, reached through a proxy that makes each request take longer and counts what was asked.

The proxy shifts answers in time and does not slow their bytes: a client with several requests in flight gains from
that, as it does from a store that is far away. It reads of a request its first line and how long its body is.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.services.s3 import S3Service, open_s3

__all__ = ["SlowStore", "slow_store"]

_PIECE_BYTES = 256 << 10
_WRITES = frozenset({"PUT", "POST", "COPY", "LIST"})
"""What stores bill as writes: ten to thirteen times as dear as a read. They count listings with them."""


class SlowStore:
    """`request_s` may be set at any time. `asked` counts requests by operation: GET, HEAD, LIST, PUT, POST, DELETE."""

    def __init__(self, service: S3Service, port: int) -> None:
        self.request_s = 0.0
        self.asked: Counter[str] = Counter()
        self.root = f"s3://{service.bucket}/bench"
        self.storage_options = {**service.options, "endpoint_url": f"http://127.0.0.1:{port}"}

    @property
    def billed(self) -> tuple[int, int]:
        """How many requests so far a store bills as writes, and how many as reads; deletes are free."""
        writes = sum(count for operation, count in self.asked.items() if operation in _WRITES)
        return writes, self.asked.total() - writes - self.asked["DELETE"]


@contextmanager
def slow_store() -> Generator[SlowStore]:
    """A service by Docker, and a proxy before it."""
    with ExitStack() as stack:
        service = open_s3(stack)
        run = stack.enter_context(_loop())
        found: list[SlowStore] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _relay(service, found[0], reader, writer)

        server = run(asyncio.start_server(answer, "127.0.0.1", 0))
        found.append(SlowStore(service, server.sockets[0].getsockname()[1]))
        stack.callback(server.close)
        yield found[0]


@contextmanager
def _loop() -> Generator[Any]:
    """Runs coroutines in an event loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _relay(
    service: S3Service, store: SlowStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, until either side ends it."""
    place = urlsplit(service.endpoint)
    async with _connection(str(place.hostname), int(place.port or 80)) as (answers, questions):
        sides = [
            asyncio.create_task(_questions(store, reader, questions)),
            asyncio.create_task(_answers(store, answers, writer)),
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


async def _questions(store: SlowStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            store.asked[_operation(head)] += 1
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


async def _answers(store: SlowStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Each piece goes on when its time has come; those behind it are taken meanwhile."""
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
            await pieces.put((loop.time() + store.request_s, piece))
        await pieces.put((0.0, b""))
