"""What every actor on a cluster has: the stage, its name, which of its lives this is, and its journal."""

import time
from dataclasses import dataclass
from pathlib import Path

from statelog.errors import StatelogError, Unavailable
from statelog.storage.log.log import Log
from statelog.storage.log.where import Where
from tests.sim.cluster.story import Board, Journal

__all__ = ["PAUSE_S", "Part", "Stage"]

PAUSE_S = 0.3
_IMPATIENT = {"socket.timeout.ms": "3000", "message.timeout.ms": "6000"}
"""Half of the lives run with these, so that outcomes stay unknown and have to be settled; the others with defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where everything is: the log, its cluster, its root, and the directory of journals and letters."""

    log: str
    bootstrap: str
    root: str
    directory: Path

    def kafka(self, life: int) -> dict[str, str]:
        """The client's settings for one life."""
        return {"bootstrap.servers": self.bootstrap, **(_IMPATIENT if life % 2 else {})}

    @property
    def is_over(self) -> bool:
        """Whether the actors are to end."""
        return self.curtain.exists()

    @property
    def curtain(self) -> Path:
        """The file whose existence ends the play."""
        return self.directory / "curtain"

    @property
    def mail(self) -> Path:
        """Where a coordinator and its tasks leave letters and answers."""
        return self.directory / "mail"

    @property
    def board(self) -> Board:
        """What was acknowledged to anybody."""
        return Board(self.directory / "board")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an actor needs to play: its name, which of its lives this is, and its journal."""

    stage: Stage
    name: str
    life: int
    journal: Journal

    def open(self) -> Log:
        """The log, once Kafka answers."""
        while True:
            try:
                return Log.open(self.stage.log, Where(self.stage.kafka(self.life), self.stage.root))
            except Unavailable as error:
                if self.stage.is_over:
                    raise
                self.failed(error)

    def failed(self, error: StatelogError) -> None:
        """Note an error after which one tries again, and wait a little."""
        self.journal.note("error", kind=type(error).__name__, text=str(error))
        time.sleep(PAUSE_S)
