"""`statelog serve`: a read-only page that shows logs; and the health, metrics and JSON log lines of a daemon.

Owns the options of a command that listens. Invariants: a forbidden address is refused before the command does anything;
servers are loaded only if they are asked for.
"""

import functools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statelog.cli.output import CliOutput
from statelog.cli.session import FILE, Session, connected, materializer_settings, stopped_by_signals
from statelog.errors import ConfigError
from statelog.formatting import as_json, show_duration, show_time
from statelog.materializer import Materializer, MaterializerSettings
from statelog.materializer.control import Control
from statelog.materializer.fleet import MemberState
from statelog.operate import export_metrics, export_traces
from statelog.operate.listening import Listening, listening_at

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from statelog.operate.health import Health

_FOREVER_S = 3600.0
_HELP = """Serve a page that shows the logs below the root: topics, snapshots, commits, readers, keys. It only reads.

It answers this machine alone, unless a certificate and a token are given. Ctrl-C and SIGTERM end it."""


def listen_options(
    default: str | None, text: str, *, of_daemon: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a server, and pass its address as `listening`; None if it does not listen.

    A daemon also gets the options of its probes, as `probing`, and of a guarded network.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        if of_daemon:
            guarded = "Allow --listen without certificate and token, because no stranger can reach it."
            probes = "Serve /livez and /readyz there in the clear, without reasons, for kubelet."
            command = click.option("--guarded-network", is_flag=True, help=guarded)(command)
            command = click.option("--probes", metavar="HOST:PORT", help=probes)(command)

        @click.option("--listen", metavar="HOST:PORT", default=default, show_default=True, help=text)
        @click.option(
            "--tls-certificate", "certificate", type=FILE, metavar="FILE",
            help="For TLS: a certificate and its chain, PEM.",
        )  # fmt: skip
        @click.option("--tls-key", "key", type=FILE, metavar="FILE", help="The certificate's key, PEM, no password.")
        @click.option("--token-file", type=FILE, metavar="FILE", help="A file with the token that clients must send.")
        @functools.wraps(command)
        def listening(*args: Any, listen: str | None, **options: Any) -> None:
            given = {name: options.pop(name) for name in ("certificate", "key", "token_file")}
            if of_daemon:
                given["is_guarded"], probes = options.pop("guarded_network"), options.pop("probes")
                options["probing"] = None if probes is None else listening_at(probes, is_guarded=True)
            command(*args, listening=None if listen is None else listening_at(listen, **given), **options)

        return listening

    return decorate


@click.command("serve", help=_HELP)
@listen_options("127.0.0.1:9401", "Where to listen.")
@connected
def command(session: Session, listening: Listening) -> None:
    """Serve the page."""
    try:
        from statelog.web.app import page_app, serve
        from statelog.web.views import PageViews
    except ImportError as error:
        raise ConfigError("the page needs starlette, uvicorn and jinja2", hint="pip install 'statelog[web]'") from error
    settings = functools.partial(materializer_settings, session.config)
    settings("")  # Raises for wrong settings of all logs before anything is served.
    with stopped_by_signals() as control, PageViews(session.where(), settings) as views:
        serve(
            page_app(views, listening),
            listening,
            lambda: _wait(control),
            ready=lambda url: session.output.line(f"serving {url}"),
        )


def _wait(control: Control) -> None:
    while not control.wait(_FOREVER_S):
        pass


@contextmanager
def observing(
    session: Session,
    listening: Listening | None,
    probing: Listening | None,
    health: "Callable[[], Health]",
    directories: Sequence[Path],
    *,
    traces: bool,
) -> Generator[None]:
    """Serve health and metrics, and export traces, in the block. Raises ConfigError if an extra is missing."""
    with ExitStack() as stack:
        if traces:
            stack.callback(export_traces())
        registry: CollectorRegistry | None = None
        if listening is not None:
            stack.callback(export_metrics(directories=directories))
            from prometheus_client import REGISTRY as registry  # noqa: N811 - behind the check for the extra
        if listening or probing:
            from statelog.operate.health import HealthServer  # Loaded on demand.

            server = stack.enter_context(HealthServer(listening, health, registry, probing))
            what = "health and metrics are" if listening else "health is"
            session.output.notice(f"{what} served at {', '.join(server.urls)}")
        yield


def one_health(
    name: str, settings: MaterializerSettings, daemon: Materializer | None, opening_s: float | None
) -> "Health":
    """Return the health of one log: with a daemon, being opened, or not existing yet."""
    from statelog.operate.health import Health, health_of_member

    problem = "it does not exist yet" if opening_s is None else f"it has been opening for {show_duration(opening_s)}"
    known = None if daemon is None else daemon.statistics()
    state = MemberState(log=name, settings=settings, statistics=known, problem=problem, opening_s=opening_s or 0.0)
    return Health(logs=[health_of_member(state)])


class JsonLogLines(CliOutput):
    """CliOutput whose lines are JSON objects with time and level, including warnings, on standard output only."""

    def __init__(self) -> None:
        super().__init__(as_json=True)

    def warning(self, text: str) -> None:
        """Print a warning as an event. If standard output takes nothing, the next event ends the daemon."""
        now = show_time(time.time(), "milliseconds")
        with suppress(OSError):
            self.line(as_json({"time": now, "level": "warning", "event": "warning", "message": text}))
