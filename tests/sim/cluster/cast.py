"""The cast of a play on a cluster: starts every actor, restarts it where the docs say so, and harms it.

Each actor is a process of its own, forked from one that has imported everything. It follows the docs for programs of
its kind:

    writer       opens, restores its key groups, resumes at its last commit; opens again after Unavailable,
                 PersistFailed and OutcomeUnknown, ends when it is fenced
    coordinator  the same, with tasks in other processes; a task that does not answer is asked again in a new slot
    task         writes under any grant that it gets, with one producer until that fails
    reader       recovers the newest state over and over on one open log
    follower     keeps the state warm; after Unavailable it resumes, and begins again where the log tells it to
    materializer the daemon `statelog materialize`, with a round every second that retains as little as it may

Any other error ends the actor with the exit code of the command line, above all damage. Invariant: an actor may end by
a signal of ours, by a newer incarnation of its name or, for a daemon, after too long an obstruction. Any other end
fails the play at once: the actor met an error that calls for a person, and nothing was lost.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess

from statelog.cli.output import FENCED, OK, OTHER, UNAVAILABLE, exit_code
from statelog.cli.program import program
from statelog.errors import Fenced, StatelogError
from tests.sim.cluster.programs import coordinate, follow, read, serve, write
from tests.sim.cluster.stage import JOB, PARTITIONS_OF, Journal, Part, Stage, entries
from tests.support.processes.starts import quick_start, write_to
from tests.support.told import listen

__all__ = ["NAMES", "ROLES", "Cast", "play"]

NAMES = {
    **{name: "coordinator" if name == JOB else "writer" for name in PARTITIONS_OF},
    **{f"task{partition}": "task" for partition in PARTITIONS_OF[JOB]},
    "reader0": "reader",
    "reader1": "reader",
    "follower": "follower",
    "materializer0": "materializer",
    "materializer1": "materializer",
}
"""The actors: name and role."""
_CONTEXT = quick_start()
_END_TIMEOUT_S = 240.0


class _Actor:
    """One incarnation of an actor, as its process."""

    def __init__(self, stage: Stage, name: str, life: int) -> None:
        self.name = name
        self.life = life
        self.is_doomed = False
        self.process: BaseProcess = _CONTEXT.Process(target=play, args=(NAMES[name], stage, name, life))
        self.process.start()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


class Cast:
    """All actors of one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lives: Counter[str] = Counter()
        self._actors: list[_Actor] = []
        self._killed: set[str] = set()
        self.given_up = 0
        stage.mail.mkdir()
        (stage.directory / "cache").mkdir()
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> int:
        """Start a new incarnation of a name, whether or not another one is alive; return its number."""
        self._lives[name] += 1
        self._actors.append(_Actor(self._stage, name, self._lives[name]))
        return self._lives[name]

    def tend(self) -> None:
        """Restart every actor that ended as the docs say. Raises AssertionError for any other end."""
        for actor in [actor for actor in self._actors if actor.process.exitcode is not None]:
            self._actors.remove(actor)
            self._check_end(actor)
            if not any(other.name == actor.name for other in self._actors):
                self.start(actor.name)

    def _check_end(self, actor: _Actor) -> None:
        code = actor.process.exitcode
        actor.process.join()
        role = NAMES[actor.name]
        if role == "materializer" and code == UNAVAILABLE:
            self.given_up += 1
            return
        is_victim = actor.is_doomed and code == -signal.SIGKILL
        assert is_victim or self._was_replaced(actor), self._last_words(actor)

    def _was_replaced(self, actor: _Actor) -> bool:
        """Return whether another incarnation of its name fenced it: one that is alive, newer, or died opening."""
        if actor.process.exitcode != FENCED:
            return False
        if actor.name in self._killed or any(other.name == actor.name for other in self._actors if other is not actor):
            return True
        opened = [entry for entry in entries(self._stage.directory, f"{actor.name}.*") if entry["what"] == "opened"]
        newest = max(opened, key=lambda entry: int(entry["epoch"]))
        return str(newest["actor"]) != f"{actor.name}.{actor.life}"

    def _last_words(self, actor: _Actor) -> str:
        """Return the known facts of its end."""
        path = self._stage.directory / f"{actor.name}.{actor.life}.jsonl"
        noted = entries(self._stage.directory, path.stem)[-3:]
        out, err = (path.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".out", ".err"))
        facts = [{name: value for name, value in entry.items() if name != "trace"} for entry in noted]
        # A death in native code names its location at the beginning.
        said = (out[-2000:], err) if len(err) < 12_000 else (out[-2000:], err[:8_000], "...", err[-4_000:])
        return "\n".join((f"{path.stem} ended with {actor.process.exitcode}", *map(str, facts), *said))

    # ---- harm

    def kill(self, name: str) -> None:
        """Send SIGKILL to its newest incarnation."""
        actor = self._newest(name)
        actor.is_doomed = True
        self._killed.add(name)
        actor.signal(signal.SIGKILL)

    def pause(self, name: str) -> int:
        """Send SIGSTOP to its newest incarnation; return its number."""
        actor = self._newest(name)
        actor.signal(signal.SIGSTOP)
        return actor.life

    def resume(self, name: str, life: int) -> None:
        """Send SIGCONT, if that incarnation was not killed meanwhile."""
        for actor in self._actors:
            if (actor.name, actor.life) == (name, life) and actor.process.is_alive():
                actor.signal(signal.SIGCONT)

    def _newest(self, name: str) -> _Actor:
        return max((actor for actor in self._actors if actor.name == name), key=lambda actor: actor.life)

    # ---- their work

    def progress(self) -> Counter[str]:
        """Return how much every name has achieved so far: acknowledged commits, states read, rounds completed."""
        done: Counter[str] = Counter()
        for entry in entries(self._stage.directory):
            if entry["what"] in {"ack", "read", "followed"}:
                done[str(entry["actor"]).partition(".")[0]] += 1
        for event in self.rounds():
            done[event] += 1
        return done

    def has_committed(self, name: str, life: int) -> bool:
        """Return whether this incarnation has an acknowledged commit."""
        return any(entry["what"] == "ack" for entry in entries(self._stage.directory, f"{name}.{life}"))

    def rounds(self) -> list[str]:
        """Return the name of the materializer for every round that ended well."""
        ended: list[str] = []
        for path in self._stage.directory.glob("materializer*.out"):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            well = {"round-completed", "round-skipped", "round-lost"}
            ended += [path.stem.partition(".")[0] for line in lines if line.get("event") in well]
        return ended

    def end(self) -> None:
        """End the play: all live actors end by themselves. Raises AssertionError for one that does not end well."""
        self._stage.curtain.touch()
        deadline = time.monotonic() + _END_TIMEOUT_S
        for actor in self._actors:
            if NAMES[actor.name] == "materializer":
                actor.signal(signal.SIGTERM)
        for actor in self._actors:
            actor.process.join(max(0.1, deadline - time.monotonic()))
            code = actor.process.exitcode
            assert code == OK or self._was_replaced(actor), self._last_words(actor)

    def kill_all(self) -> None:
        """Kill every process that is left."""
        for actor in self._actors:
            actor.process.kill()
            actor.process.join()


def play(role: str, stage: Stage, name: str, life: int) -> None:
    """Play one incarnation of an actor in this process, which then exits with a code."""
    write_to(stage.directory / f"{name}.{life}.out", 1)
    write_to(stage.directory / f"{name}.{life}.err", 2)
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
    """Record warnings and log lines as false alarms: a play neither damages nor leaves anything."""

    def note(message: Warning | str, category: type[Warning], *_place: object, **_options: object) -> None:
        journal.note("warned", kind=category.__name__, text=str(message))

    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = note
    listen(lambda line: journal.note("warned", kind=line.name, text=line.getMessage()))


# ---- the materializers


def _materialize(part: Part) -> None:
    scratch = part.stage.directory / f"scratch-{part.name}"
    scratch.mkdir(exist_ok=True)
    settings = [f"--kafka={name}={value}" for name, value in part.stage.kafka(part.life).items() if "timeout" in name]
    program(
        ["materialize", part.stage.log, "--json", "--interval=1s", "--now", "--keep=2", "--min-age=0s",
         f"--bootstrap={part.stage.bootstrap}", f"--root={part.stage.root}", f"--scratch={scratch}", *settings]
    )  # fmt: skip


ROLES: Mapping[str, Callable[[Part], None]] = {
    "writer": write,
    "coordinator": coordinate,
    "task": serve,
    "reader": read,
    "follower": follow,
    "materializer": _materialize,
}
