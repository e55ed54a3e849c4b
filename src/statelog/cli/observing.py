"""How a daemon is watched: its health and its metrics are served, and its lines are objects.

`operate` serves. Nothing of it is loaded unless it is asked for.
"""

import datetime
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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


@contextmanager
def observing(
    session: Session,
    listening: Listening | None,
    health: "Callable[[], Health]",
    directories: Sequence[Path],
    *,
    traces: bool,
) -> Generator[None]:
    """In the block, whoever may ask is answered. Raises ConfigError without an extra that this takes."""
    with ExitStack() as stack:
        if traces:
            stack.callback(export_traces())
        if listening is not None:
            stack.callback(export_metrics(directories=directories))
            # Behind the check for the extra, which they need.
            from statelog.operate.health_server import HealthServer

            server = stack.enter_context(HealthServer(listening, health))
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
