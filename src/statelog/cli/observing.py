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


def one_health(
    name: str, settings: MaterializerSettings, daemon: Materializer | None, opening_s: float | None
) -> "Health":
    """Of one log: rolled up by a daemon, being opened for so long, or not there yet."""
    from statelog.operate.health import Health, health_of_member

    problem = "it does not exist yet" if opening_s is None else f"it has been opening for {show_duration(opening_s)}"
    known = None if daemon is None else daemon.statistics()
    state = MemberState(log=name, settings=settings, statistics=known, problem=problem, opening_s=opening_s or 0.0)
    return Health(logs=[health_of_member(state)])


class JsonLines(Output):
    """Each line is an object with its time and its level, a warning, too, and nothing is written elsewhere."""

    def __init__(self) -> None:
        super().__init__(as_json=True)

    def warning(self, text: str) -> None:
        """Something that a person should look at, as an event."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self.line(as_json({"time": now, "level": "warning", "event": "warning", "message": text}))
