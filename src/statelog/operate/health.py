"""Liveness and readiness of a process, from the statistics of its rounds or workers; and `HealthServer`, which serves
`/livez`, `/readyz` and `/metrics` over HTTP.

    live    the loop runs on schedule, and no round is silent for longer than a step may take. A process that is not
            live does not recover by itself; its supervisor restarts it, which is safe at any time
    ready   a daemon: its rounds succeed, and commits reach snapshots in time; a worker: its tables are open

One thread listens. Each request has a thread of its own; few run at a time, each for a few seconds at most. So clients
that hold connections open block other clients, and never the daemon. The status is 200 or 503, with a line for each
reason. `?log=NAME` asks for one log; an unknown log is not ready.

Invariants:
- A daemon whose rounds fail is live: a restart would not help, and would hide the error.
- Answers are read from memory: no broker and no store is asked.
- Probes get the status without reasons.
"""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from statelog.closing import Closing, undone_by_errors
from statelog.formatting import show_counted, show_duration
from statelog.materializer import MaterializerSettings
from statelog.materializer.fleet import MemberState
from statelog.materializer.statistics import MaterializerStatistics
from statelog.operate.listening import Listening
from statelog.tables import Worker
from statelog.tables.group.schedule import PartitionStatistics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_REQUEST_S = 5.0
_AT_ONCE = 16
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """The health of one log: the reasons why it is not live, and not ready; empty if it is."""

    log: str
    not_live: str = ""
    not_ready: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a process: its logs, `not_live` of the loop that drives them, `problem` of the search for logs."""

    logs: Sequence[LogHealth] = ()
    not_live: str = ""
    problem: str = ""

    def why_not_live(self) -> list[str]:
        """Return the reasons; empty if the process is live. A hanging log counts only if all logs hang."""
        hanging = [f"{one.log}: {one.not_live}" for one in self.logs if one.not_live]
        are_all = bool(hanging) and len(hanging) == len(self.logs)
        return [self.not_live] * bool(self.not_live) + hanging * are_all

    def why_not_ready(self) -> list[str]:
        """Return the reasons; empty if the process is ready. A hanging log is not ready."""
        found = [self.not_live] if self.not_live else []
        found += [f"all logs: {self.problem}"] if self.problem else []
        for one in self.logs:
            found += [f"{one.log}: {reason}" for reason in (one.not_live, *one.not_ready) if reason]
        return found


def health_of(log: str, now: MaterializerStatistics, settings: MaterializerSettings) -> LogHealth:
    """Judge a log by the statistics of its rounds."""
    return LogHealth(log=log, not_live=_hangs(now, settings.hang_s), not_ready=tuple(_fails(now, settings)))


def health_of_all(states: Iterable[MemberState], *, late_s: float, hang_s: float, problem: str = "") -> Health:
    """Judge a process that drives many logs, by each log, the delay of its own loop, and its problem."""
    late = f"the loop hangs: it is {show_duration(late_s)} late"
    logs = [health_of_member(one) for one in states]
    return Health(logs=logs, not_live=late if late_s >= hang_s else "", problem=problem)


def health_of_member(state: MemberState) -> LogHealth:
    """Judge a log, with a daemon or without."""
    if state.statistics is not None:
        return health_of(state.log, state.statistics, state.settings)
    if state.opening_s >= state.settings.hang_s:
        return LogHealth(log=state.log, not_live=f"it has been opening for {show_duration(state.opening_s)}")
    return LogHealth(log=state.log, not_ready=(state.problem,) if state.problem else ())


def _hangs(now: MaterializerStatistics, hang_s: float) -> str:
    if now.late_s >= hang_s:
        return f"the loop hangs: it is {show_duration(now.late_s)} late"
    if now.silent_s >= hang_s:
        return f"the round hangs: its latest step began {show_duration(now.silent_s)} ago"
    return ""


def _fails(now: MaterializerStatistics, settings: MaterializerSettings) -> Iterator[str]:
    if now.failures_in_a_row:
        yield f"{show_counted(now.failures_in_a_row, 'round')} in a row failed, the last one with: {now.error}"
    if now.hanging:
        yield f"{show_counted(now.hanging, 'abandoned round')} still hanging"
    if now.age_s >= settings.alarm_age_s:
        yield f"the oldest commit in no snapshot is {show_duration(now.age_s)} old"


def health_of_process(things: Iterable[tuple[object, str]], hang_s: float) -> Health:
    """Judge a process by its open objects, each with its log: are there any, and are its workers ready."""
    there = list(things)
    of = [health_of_worker(log, it.silent_s, it.statistics(), hang_s) for it, log in there if isinstance(it, Worker)]
    return Health(logs=of, problem="" if there else "nothing is open yet")


def health_of_worker(log: str, silent_s: float, found: Iterable[PartitionStatistics], hang_s: float) -> LogHealth:
    """Judge a worker by how long its loop has been silent, and by the partitions whose tables are not open."""
    late = f"the loop hangs: it last polled {show_duration(silent_s)} ago"
    closed = [str(one.partition) for one in found if one.commit_age_s is None]
    waiting = f"no open table yet for {show_counted(len(closed), 'partition')}: {', '.join(closed)}"
    return LogHealth(log=log, not_live=late if silent_s >= hang_s else "", not_ready=(waiting,) if closed else ())


AskHealth = Callable[[], Health]


class HealthServer(Closing):
    """A server that listens from its construction until it is closed. `urls`: its addresses, `url` the first of them.

    `listening` answers with reasons, and with the metrics of the `registry`; `probing` only with the status. Port 0
    takes a free one. Raises ConfigError if an address cannot be bound.
    """

    def __init__(
        self,
        listening: Listening | None,
        health: AskHealth,
        registry: "CollectorRegistry | None",
        probing: Listening | None = None,
    ) -> None:
        self._ends = ExitStack()
        with undone_by_errors(self._ends.close):
            places = ((listening, registry), (probing, None))
            self.urls = [self._begin(place, _Server(place, health, of)) for place, of in places if place is not None]
            self.url = self.urls[0]

    def _begin(self, place: Listening, server: "_Server") -> str:
        thread = threading.Thread(target=server.serve_forever, name="statelog-health", daemon=True)
        with undone_by_errors(server.server_close):
            thread.start()
        for end in (thread.join, server.server_close, server.shutdown):  # Called in reverse.
            self._ends.callback(end)
        return replace(place, port=server.server_port).url

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._ends.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: Listening, health: AskHealth, registry: "CollectorRegistry | None") -> None:
        self.listening, self.health, self.registry = listening, health, registry
        self._tls = listening.context()
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__((listening.host, listening.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening.bound()
        self.server_port = self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Process a request on a thread of its own, if a slot is free; otherwise close the connection."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with undone_by_errors(self._slots.release):
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, including its handshake, so that a slow client delays no other."""

        def cut() -> None:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

        limit = threading.Timer(2 * _REQUEST_S, cut)
        limit.daemon = True
        try:
            limit.start()
            request.settimeout(_REQUEST_S)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # A failed handshake, or a broken connection.
            self.shutdown_request(request)
        finally:
            limit.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a broken connection concerns its client only."""


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
            case "/metrics" if self.server.registry is not None:
                from prometheus_client.exposition import choose_encoder  # An extra; a registry implies it.

                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(self.server.registry), kind=kind)
            case _:
                more = "" if self.server.registry is None else " and /metrics"
                self._answer(HTTPStatus.NOT_FOUND, f"there are /livez, /readyz{more}\n")

    do_HEAD = do_GET  # noqa: N815 - its name in the standard library

    def _health(self, query: str) -> Health:
        found, wanted = self.server.health(), parse_qs(query).get("log")
        if not wanted:
            return found
        known = {one.log: one for one in found.logs}
        logs = [known.get(log) or LogHealth(log=log, not_ready=("it is not open here",)) for log in wanted]
        return replace(found, logs=logs, problem="")

    def _judge(self, reasons: list[str], well: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        if reasons and self.server.registry is None:
            reasons = [f"not {well}"]
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
        """Log nothing: a probe comes every few seconds."""
