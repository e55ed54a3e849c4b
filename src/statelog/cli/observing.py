"""How a daemon is watched: the options that say where its health and its metrics are served, and to whom; and its
lines as objects.

Owns the options; `operate` serves. Nothing of it is loaded unless it is asked for.
"""

import datetime
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from statelog.cli.listening import listen_options
from statelog.cli.output import Output
from statelog.cli.session import Session
from statelog.environment import current_environment
from statelog.formatting import as_json, show_duration
from statelog.materializer import Materializer, MaterializerSettings
from statelog.materializer.fleet import MemberState
from statelog.operate import export_metrics, export_traces
from statelog.operate.listening import Listening

if TYPE_CHECKING:
    from statelog.operate.health import Health

F = TypeVar("F", bound=Callable[..., Any])


def observed(command: F) -> F:
    """Give a command the options of this page, and `observing` as an argument."""

    @listen_options(None, "Serve /livez, /readyz and /metrics there.")
    @click.option("--traces", is_flag=True, help="Make spans for OpenTelemetry, as its environment says.")
    @functools.wraps(command)
    def with_observing(*args: Any, **options: Any) -> Any:
        observing = Observing(listening=options.pop("listening"), traces=options.pop("traces"))
        return command(*args, observing=observing, **options)

    return with_observing  # type: ignore[return-value]  # the same, but for the options


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing:
    """Where, and to whom."""

    listening: Listening | None
    traces: bool

    @contextmanager
    def started(self, session: Session, health: "Callable[[], Health]", directories: Sequence[Path]) -> Generator[None]:
        """In the block, whoever may ask is answered. Raises ConfigError."""
        with ExitStack() as stack:
            if self.traces:
                stack.callback(export_traces())
            if self.listening is not None:
                stack.callback(export_metrics(directories=directories))
                # Behind the check for the extra, which they need.
                from statelog.operate.health_server import HealthServer

                server = stack.enter_context(HealthServer(self.listening, health))
                session.output.notice(f"health and metrics are served at {server.url}")
            yield


class WatchedLog:
    """One log as its daemon has it: waited for, being opened, or rolled up."""

    def __init__(self, name: str, settings: MaterializerSettings) -> None:
        self._name = name
        self._settings = settings
        self._clock = current_environment().clock
        self._opening_since_s: float | None = None
        self._daemon: Materializer | None = None

    def is_opening(self) -> None:
        """It is there, or must be, and is being opened from now on."""
        self._opening_since_s = self._clock()

    def is_driven_by(self, daemon: Materializer) -> None:
        """It is open."""
        self._daemon = daemon

    def __call__(self) -> "Health":
        """What speaks against it now."""
        from statelog.operate.health import Health, health_of_member

        daemon, since_s = self._daemon, self._opening_since_s
        opening_s = 0.0 if since_s is None else self._clock() - since_s
        opening = f"it has been opening for {show_duration(opening_s)}"
        state = MemberState(
            log=self._name,
            settings=self._settings,
            statistics=None if daemon is None else daemon.statistics(),
            problem="it does not exist yet" if since_s is None else opening,
            opening_s=opening_s,
        )
        return Health(logs=[health_of_member(state)])


class JsonLines(Output):
    """Each line is an object with its time and its level, a warning, too, and nothing is written elsewhere."""

    def __init__(self) -> None:
        super().__init__(as_json=True)

    def warning(self, text: str) -> None:
        """Something that a person should look at, as an event."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self.line(as_json({"time": now, "level": "warning", "event": "warning", "message": text}))
