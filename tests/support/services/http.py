"""A small HTTP server on loopback, inside the test's process, for services that tests play; and a client of one."""

import sys
import threading
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answering", "asked", "serving"]

_POLL_S = 0.05


class Answering(ABC, BaseHTTPRequestHandler):
    """A quiet handler that answers with whole bodies. `serve` says what it answers, whatever the method."""

    def do_GET(self) -> None:
        """Answer as to any other method."""
        self.serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names are http.server's

    @abstractmethod
    def serve(self) -> None:
        """Answer the request."""

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send status, headers and body; a HEAD gets no body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Keep quiet."""


def asked(port: int, page: str) -> tuple[int, str]:
    """Return the status and the text that a server of this machine answers with; 0 and the reason if none does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: Callable[[Any, Any, Any], BaseHTTPRequestHandler]) -> Generator[str]:
    """Yield the address of a server on a free port, for as long as the block runs."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
