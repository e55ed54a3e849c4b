"""The example of the README on a real broker: SIGKILL of workers and coordinator at every named step, and a zombie.

The action of a process at a step, once, is an object that pickles. A file in a shared directory records that it
happened, and to which process.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.processes import alive, resume, wait_until
from examples import coordinator as example
from examples.coordinator import LICENSE, LINES_PER_COMMIT, Job, count_words, run_to_the_end, words
from statelog.environment import Environment
from statelog.log import Where
from statelog.schemas.key_groups import KeyType
from tests.support.processes.starts import quick_start
from tests.support.rigs.log import UNSAFE, LogRig, real_rig
from tests.support.services.broker import Broker


def coordinate(job: Job) -> None:
    """Run the coordinator's process: the example's, but its workers start quickly."""
    example.__dict__["SPAWN"] = quick_start()  # Of another type, with the same methods.
    Environment(crash=job.step).run(example.coordinate, job)


def nothing(_: str) -> None:
    """Go on."""


@dataclass(frozen=True, slots=True)
class DieOnce:
    """An action that sends SIGKILL to the first process at each of these steps."""

    directory: Path
    steps: tuple[str, ...]

    def __call__(self, step: str) -> None:
        """Die here, if no process has yet."""
        if step in self.steps and _is_first(self.directory / step.replace(": ", "-")):
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def left(self) -> list[str]:
        """The steps at which no process died."""
        return [step for step in self.steps if not (self.directory / step.replace(": ", "-")).exists()]


@dataclass(frozen=True, slots=True)
class StopOnce:
    """An action that sends SIGSTOP to the first process at a step; `note` names it then."""

    note: Path
    step: str

    def __call__(self, step: str) -> None:
        """Stop here, if no process has yet."""
        if step == self.step and _is_first(self.note):
            os.kill(os.getpid(), signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The stopped process, or 0."""
        return int(self.note.read_text() or 0) if self.note.exists() else 0


def _is_first(note: Path) -> bool:
    try:
        with note.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


BATCHES = 4
DEATHS = (
    "worker: asked",
    "worker: counted",
    "worker: persisted",
    "coordinator: opened",
    "commit-made",
    "committed",
)


@pytest.fixture(autouse=True)
def _start_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the example's processes off a server."""
    monkeypatch.setattr(example, "SPAWN", quick_start())
    monkeypatch.setattr(example, "coordinate", coordinate)


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> LogRig:
    """Return a log of string keys."""
    made = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    made.create(key_type=KeyType.STRING).close()
    return made


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a text of a few batches."""
    lines = [line for line in LICENSE.read_text("utf-8").splitlines() if line.strip()]
    path = tmp_path / "text"
    path.write_text("\n".join(lines[: BATCHES * LINES_PER_COMMIT]), "utf-8")
    return path


@pytest.fixture
def make_job(rig: LogRig, text: Path, broker: Broker, tmp_path: Path) -> Callable[[Callable[[str], None]], Job]:
    """Return a function that makes the job, given the actions of its processes at their steps."""
    where = Where({"bootstrap.servers": broker.bootstrap}, str(tmp_path / "root"), allow_unsafe=UNSAFE)

    def make(step: Callable[[str], None]) -> Job:
        return Job(log=rig.name, where=where, text=text, workers=2, step=step)

    return make


def plain_count(text: Path) -> dict[str, int]:
    """Return the counts of a loop over the text."""
    return Counter(words(text.read_text("utf-8").splitlines()))


@pytest.mark.broker
def test_killed_at_every_step(make_job: Callable[[Callable[[str], None]], Job], text: Path, tmp_path: Path) -> None:
    """A worker or the coordinator is killed at each step once; nothing is lost, and nothing counted twice."""
    deaths = DieOnce(tmp_path, DEATHS)
    job = make_job(deaths)

    lives = run_to_the_end(job)

    assert deaths.left == []
    assert lives == 1 + sum(not step.startswith("worker") for step in DEATHS)
    assert count_words(job) == plain_count(text)


@pytest.mark.broker
def test_zombie_worker_of_a_dead_coordinator(
    make_job: Callable[[Callable[[str], None]], Job], rig: LogRig, text: Path, tmp_path: Path
) -> None:
    """A worker sleeps while its coordinator is killed and the next one ends the work; its later writes are void."""
    sleeper = StopOnce(tmp_path / "sleeper", "worker: counted")
    coordinator = quick_start().Process(target=coordinate, args=(make_job(sleeper),))
    coordinator.start()
    try:
        wait_until(lambda: sleeper.pid > 0, 120, "no worker came to its step")
        coordinator.kill()
        coordinator.join()
        assert coordinator.exitcode == -signal.SIGKILL
        job = make_job(nothing)
        assert run_to_the_end(job) == 1
        with rig.open() as log:
            ends = log.data_offsets()
        assert alive([sleeper.pid])
    finally:
        resume([sleeper.pid])
    wait_until(lambda: not alive([sleeper.pid]), 120, "the zombie does not end")

    with rig.open() as log:
        assert log.data_offsets() != ends, "the zombie wrote nothing"
    assert count_words(job) == plain_count(text)
