"""What watches a process, if anything does: it is told of the requests of the ports, of opens, commits, rounds and
recoveries as they begin and end, of how far recoveries are, and of what is made. Types only.

Whoever has an environment tells: `environment.watch` sets who is told. Metrics and traces are observers; `operate` has
them. An observer must be quick and thread-safe, must not raise, and never changes what it is told of.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    """One call of a port. `error` is the name of the error that it ended with, empty if it ended well."""

    log: str
    port: str
    operation: str
    seconds: float
    size_bytes: int = 0
    error: str = ""


class TimedStep(NamedTuple):
    """What took its time: its name, of which log, and the error that it ended with. `began_s` is since 1970.

    `changes` and their `size_bytes` are what a commit makes visible, if it ends well; 0 of every other step.
    """

    name: str
    log: str
    began_s: float
    seconds: float = 0.0
    error: str = ""
    changes: int = 0
    size_bytes: int = 0


class Observer(Protocol):
    """Who watches."""

    def request(self, request: Request) -> None:
        """A request of a port is over."""
        ...

    def began(self, step: TimedStep) -> Callable[[TimedStep], None]:
        """A step begins: `seconds` and `error` are not known yet. What is returned is called once it is over, in the
        same thread and context; steps that begin in between are within it.
        """
        ...

    def progress(self, of: object, log: str, fraction: float, left_s: float | None) -> None:
        """A recovery of the log, or a table or worker that opens, is that far, from 0 to 1; `left_s` is estimated. `of`
        stands for it, among others that go on: to be held weakly.
        """
        ...

    def made(self, thing: object, log: str, name: str) -> None:
        """A writer, table, standby or materializer was made, of this name within its log: to be asked for its
        statistics later, and held weakly.
        """
        ...
