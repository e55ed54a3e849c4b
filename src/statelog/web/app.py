"""The page: all logs below a root, one log, one key; the events that keep a page live; and `serve`, its server.

Owns requests and answers; their content comes from `PageViews`. Invariants:

- No request writes anything, and only listed logs are opened.
- Content of logs and keys reaches a page as text, with control characters escaped. A page loads from this server only.
- An address that cannot be bound is an error, and nothing is served. A stop also ends live pages.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar, cast
from urllib.parse import quote

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statelog.errors import StatelogError, Unavailable
from statelog.formatting import clean, show_count, show_counted, show_duration, show_time
from statelog.operate.listening import Listening
from statelog.operate.report import Report, shown, words
from statelog.operate.rows import BytesText, shown_rows, value_column
from statelog.schemas.changes.changes import DELETE
from statelog.web.pictures import picture_of_runs, picture_of_topics
from statelog.web.views import KeyView, LogView, PageViews, is_no_log

T = TypeVar("T")
_WAIT_S = 3.0
_EVERY_S = 2.0
_STEPS = 10
_KEEPALIVE_S = 15.0
_MOST_ROWS = 200
_MOST_LIVE = 64
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
_STATIC = {"style.css": "text/css", "live.js": "text/javascript"}
_GRACE_S = 2
_POLL_S = 0.02


def page_app(views: PageViews, listening: Listening) -> Starlette:
    """Return the application for a server at this address."""
    page = _Page(views)
    hosts = ["*"] if listening.token else [*_LOOPBACK, listening.host]
    app = Starlette(
        routes=[
            Route("/", page.root),
            Route("/events", page.root_events),
            Route("/static/{name}", _static),
            Route("/logs/{name}", page.log),
            Route("/logs/{name}/events", page.log_events),
            Route("/logs/{name}/key", page.key),
        ],
        middleware=[
            # Without a token, no other website may reach this page through a host name of its own.
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(_Guarded, listening=listening),
        ],
    )
    app.state.is_ending = False
    return app


class _Guarded:
    """A middleware that requires the token, and sends the headers that isolate the page."""

    def __init__(self, app: ASGIApp, listening: Listening) -> None:
        self._app = app
        self._listening = listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in given)]
            await send(message)

        answer = self._app
        if scope["type"] == "http" and not self._listening.admits(Request(scope).headers.get("authorization", "")):
            challenge = {"www-authenticate": 'Basic realm="statelog: the token is the password"'}
            answer = PlainTextResponse("A token is needed.\n", 401, challenge)
        await answer(scope, receive, send_guarded)


class _Page:
    """The answers. Reads may take long, so they run on threads, and requests wait for a bounded time."""

    def __init__(self, views: PageViews) -> None:
        self._views = views
        self._templates = _templates()
        self._live = 0
        self._key_slots = asyncio.Semaphore(2)

    # ---- all logs

    async def root(self, _: Request) -> Response:
        return self._html("root.html", await run_in_threadpool(self._root_values))

    async def root_events(self, request: Request) -> Response:
        return self._events(request, lambda: self._render("root_live.html", self._root_values()))

    def _root_values(self) -> dict[str, object]:
        names = self._views.names(_WAIT_S)
        count = len(names.value or ())
        views = {name: self._views.log(name, 0.0, count) for name in names.value or ()}
        for name in [name for name, latest in views.items() if latest.value is None]:
            views[name] = self._views.log(name, _WAIT_S / count, count)
        logs = {name: latest for name, latest in views.items() if not is_no_log(latest)}
        return {"names": names, "logs": logs, "root": self._views.root, "path": "/"}

    # ---- one log

    async def log(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not await self._is_there(name):
            return self._html("missing.html", {"name": name, "path": "/"}, status=404)
        return self._html("log.html", await run_in_threadpool(self._log_values, name))

    async def log_events(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not await self._is_there(name):
            return PlainTextResponse("There is no such log.\n", 404)
        return self._events(request, lambda: self._render("log_live.html", self._log_values(name)))

    async def _is_there(self, name: str) -> bool:
        """Tell whether the name is listed. While the root cannot be listed, names listed before still count."""
        names = await run_in_threadpool(self._views.names, _WAIT_S)
        return name in (names.value or ())

    def _log_values(self, name: str) -> dict[str, object]:
        latest = self._views.log(name, _WAIT_S)
        values: dict[str, object] = {"name": name, "latest": latest, "path": f"/logs/{name}"}
        if latest.value is not None:
            values |= _log_values(latest.value)
        return values

    # ---- one key

    async def key(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        if not await self._is_there(name):
            return self._html("missing.html", {"name": name, "path": "/"}, status=404)
        text, group = query.get("key", ""), query.get("group", "")
        asked = {"key": text, "bytes": query.get("bytes", "utf8"), "group": group, "history": query.get("history", "")}
        values: dict[str, object] = {"name": name, "path": f"/logs/{name}", "asked": asked}
        try:
            bytes_text = BytesText(asked["bytes"])
            number = int(group) if group else None
        except ValueError:
            return self._html("key.html", {**values, "problem": "The request is invalid."}, status=400)
        async with self._key_slots:
            try:
                found = await run_in_threadpool(
                    self._views.key, name, text, bytes_text, number, with_history=bool(asked["history"])
                )
            except StatelogError as error:
                problem = {"problem": error.message, "hint": error.hint}
                return self._html("key.html", {**values, **problem}, status=400)
        return self._html("key.html", {**values, **_key_values(found)})

    # ---- answers

    def _html(self, template: str, values: Mapping[str, object], *, status: int = 200) -> Response:
        return HTMLResponse(self._render(template, values), status)

    def _render(self, template: str, values: Mapping[str, object]) -> str:
        return self._templates.get_template(template).render(values)

    def _events(self, request: Request, render: Callable[[], str]) -> Response:
        """Send the live part of the page as server-sent events, whenever it changes."""
        if self._live >= _MOST_LIVE:
            return PlainTextResponse("Too many live pages.\n", 503)
        return StreamingResponse(self._changes(request, render), media_type="text/event-stream")

    async def _changes(self, request: Request, render: Callable[[], str]) -> AsyncIterator[str]:
        self._live += 1
        try:
            last, silent_s = "", 0.0
            while not (request.app.state.is_ending or await request.is_disconnected()):
                text = await run_in_threadpool(render)
                if text != last:
                    last, silent_s = text, 0.0
                    yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
                elif silent_s >= _KEEPALIVE_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
                silent_s += await _pause(request)
        finally:
            self._live -= 1


async def _pause(request: Request) -> float:
    """Wait until the next read is due, or the server ends. Returns the time waited."""
    steps = 0
    while steps < _STEPS and not request.app.state.is_ending:
        await asyncio.sleep(_EVERY_S / _STEPS)
        steps += 1
    return _EVERY_S * steps / _STEPS


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("There is no such file.\n", 404)
    text = files("statelog.web").joinpath("static", name).read_text("utf-8")
    return Response(text, media_type=_STATIC[name], headers={"cache-control": "no-cache"})


# ---- the values of templates


def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("statelog.web"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    filters: dict[str, Callable[[Any], str]] = {
        "words": words,
        "clean": clean,
        "count": show_count,
        "duration": show_duration,
        "time": lambda time_s: f"{show_time(time_s)[:19].replace('T', ' ')} UTC",
        "clock": lambda time_s: show_time(time_s)[11:19],
        "url": quote,
    }
    made.filters.update(filters)
    cast("dict[str, Any]", made.globals).update({"shown": shown, "counted": show_counted, "most_rows": _MOST_ROWS})
    return made


def _log_values(view: LogView) -> dict[str, object]:
    tables = {one.name: one for one in view.report.listings}
    runs, partitions = _objects(view.report, "runs"), _objects(view.report, "data_partitions")
    return {
        "facts": view.report.facts,
        "budget_s": view.restore_budget_s,
        "tables": [tables[name] for name in ("writers", "leases", "subscriptions") if name in tables],
        "topics": picture_of_topics(partitions),
        "runs": picture_of_runs(runs, int(str(view.report.facts["key_groups"]))),
        "view": view,
    }


def _objects(report: Report, name: str) -> list[dict[str, Any]]:
    return [dict(zip(one.columns, row, strict=True)) for one in report.listings if one.name == name for row in one.rows]


def _key_values(found: KeyView) -> dict[str, object]:
    values = shown_rows(found.lookup.rows, found.lookup.rows.num_rows)
    history: list[dict[str, object]] = []
    for batch in found.history.rows if found.history else ():
        plain = ("key_group", "writer", "checkpoint", "position", "timestamp")
        columns = {name: batch.column(name).to_pylist() for name in plain}
        columns["op"] = ["delete" if op == DELETE else "put" for op in batch.column("op").to_pylist()]
        columns["value"] = value_column(batch.column("value"), None)
        history += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"found": found, "values": values, "history": history[::-1]}


def serve(app: Starlette, listening: Listening, wait: Callable[[], object], *, ready: Callable[[str], object]) -> None:
    """Serve until `wait` returns; call `ready` with the URL once pages are answered. Raises ConfigError."""
    listening.context()  # Raises here, with a hint, before the server does.
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )
    server = uvicorn.Server(config)
    with listening.bound() as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="statelog-serve", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise Unavailable("the server ended during its start")
                time.sleep(_POLL_S)
            port = bound.getsockname()[1]
            ready(Listening(host=listening.host, port=port, certificate=listening.certificate).url)
            wait()
        finally:
            app.state.is_ending = True  # Ends live pages.
            server.should_exit = True
            thread.join(_GRACE_S * 2)
