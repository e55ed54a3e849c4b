"""`HealthServer`: `/livez`, `/readyz` and `/metrics` of a daemon, over HTTP. Needs the extra `metrics`.

One thread listens, and each request has its own, few at a time, each for a few seconds at most: who holds connections
open keeps others from asking, and never the daemon from working. It answers from memory: no broker and no store is
asked. 200 says yes, 503 no, with a line for each reason; `?log=NAME` asks for one log.

Invariant: what may be asked is only read.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from statelog.closing import Closing
from statelog.operate.health import Health
from statelog.operate.listening import Listening

_REQUEST_S = 5.0
_AT_ONCE = 16
_TEXT = "text/plain; charset=utf-8"
AskHealth = Callable[[], Health]


class HealthServer(Closing):
    """Listens from its making on, until it is closed. `url` is where; port 0 takes a free one.

    Raises ConfigError if the address cannot be had.
    """

    def __init__(self, listening: Listening, health: AskHealth, registry: CollectorRegistry = REGISTRY) -> None:
        self._server = _Server(listening, health, registry)
        self.url = replace(listening, port=self._server.server_port).url
        self._thread = threading.Thread(target=self._server.serve_forever, name="statelog-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: Listening, health: AskHealth, registry: CollectorRegistry) -> None:
        self.listening, self.health, self.registry = listening, health, registry
        self._tls = listening.context()
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__((listening.host, listening.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening.bound()
        self.server_port = self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """On a thread of its own, if there is room."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, its handshake included: who does not speak holds up nobody else."""
        try:
            request.settimeout(_REQUEST_S)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # A handshake that failed, or a connection that broke.
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a connection that breaks is its client's trouble."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - the only one that makes handlers
    timeout = _REQUEST_S
    server_version, sys_version = "statelog", ""

    def do_GET(self) -> None:
        if not self.server.listening.admits(self.headers.get("Authorization", "")):
            self._answer(HTTPStatus.UNAUTHORIZED, "a token is needed\n", ("WWW-Authenticate", "Bearer"))
            return
        asked = urlsplit(self.path)
        match asked.path:
            case "/livez":
                self._judge(self._health(asked.query).why_not_live(), "live")
            case "/readyz":
                self._judge(self._health(asked.query).why_not_ready(), "ready")
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(self.server.registry), kind=kind)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "there are /livez, /readyz and /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - its name in the standard library

    def _health(self, query: str) -> Health:
        found, wanted = self.server.health(), parse_qs(query).get("log")
        if not wanted:
            return found
        return replace(found, logs=[one for one in found.logs if one.log in wanted])

    def _judge(self, reasons: list[str], well: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        self._answer(status, "".join(f"{line}\n" for line in reasons or [well]))

    def _answer(self, status: HTTPStatus, body: str | bytes, *headers: tuple[str, str], kind: str = _TEXT) -> None:
        data = body.encode("utf-8", "backslashreplace") if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (*headers, ("Content-Type", kind), ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        """Nothing: a probe every few seconds is no event."""
