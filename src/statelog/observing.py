"""The observers of a process, which are notified of requests of the ports, steps, progress and new objects. Types only.

Steps are opens, commits, rounds and recoveries. The environment notifies observers; `environment.watch` registers one.
`operate` has the observers for metrics and traces. An observer must be quick and thread-safe, must not raise, and never
changes the observed objects.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    """One call of a port. `error` is the name of its error, empty on success."""

    log: str
    port: str
    operation: str
    seconds: float
    size_bytes: int = 0
    error: str = ""


class TimedStep(NamedTuple):
    """A step of a log, with its duration. `began_s` is since 1970; `error` is the name of its error, empty on success.

    `changes` and `size_bytes` are of a commit's changes, which a success makes visible; 0 for every other step.
    """

    name: str
    log: str
    began_s: float
    seconds: float = 0.0
    error: str = ""
    changes: int = 0
    size_bytes: int = 0


class Observer(Protocol):
    """An observer."""

    def request(self, request: Request) -> None:
        """Receive a completed request of a port."""
        ...

    def began(self, step: TimedStep) -> Callable[[TimedStep], None]:
        """Receive a step that begins, without `seconds` and `error`. Return a callback for its end.

        The callback runs in the same thread and context. Steps that begin in between are nested in this one.
        """
        ...

    def progress(self, of: object, log: str, fraction: float, left_s: float | None) -> None:
        """Receive the progress, from 0 to 1, of a recovery, or of a table or worker that opens.

        `of` identifies it; hold it weakly. `left_s` is the estimated remaining time.
        """
        ...

    def made(self, thing: object, log: str, name: str) -> None:
        """Receive a new writer, table, standby or materializer, of this name within its log.

        Hold it weakly; it gives its statistics later.
        """
        ...
