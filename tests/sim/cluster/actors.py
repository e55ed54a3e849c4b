"""The actors on a cluster, each in a process of its own, and each doing what the docs tell a program of its kind.

    writer       opens, restores its key groups, resumes at its last commit; opens again after Unavailable,
                 PersistFailed and OutcomeUnknown, ends when it is fenced
    coordinator  the same, with tasks in other processes; a task that does not answer is asked again in a new slot
    task         writes under whatever grant it is handed, with one producer until that fails
    reader       recovers the newest state over and over on one open log
    follower     keeps the state warm; after Unavailable it resumes, and begins anew where the log tells it to
    materializer the daemon `statelog materialize`, with a round every second that keeps as little as it may

Whatever else is raised ends the actor with the exit code of the command line, above all damage: nobody opens again
after an error that calls for a person.
"""

import faulthandler
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from statelog.cli.exit_codes import FENCED, OTHER, exit_code
from statelog.cli.program import program
from statelog.errors import Fenced, StatelogError
from tests.sim.cluster.part import Part, Stage
from tests.sim.cluster.readers import follow, read
from tests.sim.cluster.story import Journal
from tests.sim.cluster.writers import coordinate, serve, write
from tests.support.told import LOGGERS

__all__ = ["ROLES", "play"]


def play(role: str, stage: Stage, name: str, life: int) -> None:
    """One life of an actor, in this process; ends the process with an exit code."""
    _to_file(stage.directory / f"{name}.{life}.out", 1)
    _to_file(stage.directory / f"{name}.{life}.err", 2)
    faulthandler.enable()
    part = Part(stage=stage, name=name, life=life, journal=Journal(stage.directory / f"{name}.{life}.jsonl"))
    part.journal.note("born", role=role, pid=os.getpid())
    _note_warnings(part.journal)
    try:
        ROLES[role](part)
    except SystemExit:
        raise
    except Fenced as error:
        part.journal.note("fenced", text=str(error))
        sys.exit(FENCED)
    except BaseException as error:  # noqa: BLE001 - whatever it died of is noted, and told by the exit code
        part.journal.note("died", kind=type(error).__name__, text=str(error), trace=traceback.format_exc())
        sys.exit(exit_code(error) if isinstance(error, StatelogError) else OTHER)
    part.journal.note("done")


def _note_warnings(journal: Journal) -> None:
    """Nothing is damaged or left behind in a play, so a warning is a false alarm, too, and so is a log line."""

    def note(message: Warning | str, category: type[Warning], *_place: object, **_options: object) -> None:
        journal.note("warned", kind=category.__name__, text=str(message))

    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = note
    for logger in LOGGERS:
        logger.addHandler(_Noting(journal))


class _Noting(logging.Handler):
    """Notes every log line from a warning on."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Note one line."""
        self._journal.note("warned", kind=record.name, text=record.getMessage())


# ---- those who roll up


def _materialize(part: Part) -> None:
    scratch = part.stage.directory / f"scratch-{part.name}"
    scratch.mkdir(exist_ok=True)
    settings = [f"--kafka={name}={value}" for name, value in part.stage.kafka(part.life).items() if "timeout" in name]
    program(
        ["materialize", part.stage.log, "--json", "--interval=1s", "--jitter=0", "--keep=2", "--min-age=0s",
         f"--bootstrap={part.stage.bootstrap}", f"--root={part.stage.root}", f"--scratch={scratch}", *settings]
    )  # fmt: skip


def _to_file(path: Path, descriptor: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, descriptor)
    os.close(file)


ROLES: Mapping[str, Callable[[Part], None]] = {
    "writer": write,
    "coordinator": coordinate,
    "task": serve,
    "reader": read,
    "follower": follow,
    "materializer": _materialize,
}
