"""SIGKILL of the Spark driver at every step of a batch, and two drivers at once: the restarted job ends exact."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.services.broker import Broker
from tests.support.spark.rig import Row, SparkLog, fold_rows, write_batches
from tests.support.spark.strikes import JobSettings
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]  # Six runs of Spark at most.

BATCHES: list[list[Row]] = [[(key, number * 100 + key) for key in range(number, 40, 2)] for number in range(7)]
BATCHES[3] += [(key, None) for key in (1, 2)]  # Both are of another parity, or below the range: no key comes twice.
_LIFE_TIMEOUT_S = 150.0


class Job:
    """A Spark job over `BATCHES`, with as many runs as a test gives it."""

    def __init__(self, rig: SparkLog, directory: Path) -> None:
        self.rig = rig
        self.directory = directory
        self.settings = JobSettings(
            options={**rig.options, "writerId": "job", "uniqueKeys": "true"},
            source=str(directory / "input"),
            checkpoint=str(directory / "checkpoint"),
            directory=str(directory),
        )
        write_batches(directory / "input", BATCHES)

    def start(self, settings: JobSettings) -> "subprocess.Popen[bytes]":
        """Start one run of the job."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (self.directory / "job.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.job", settings.to_json()],
                env=environment,
                stdout=output,
                stderr=output,
            )

    def live(self, settings: JobSettings) -> int:
        """Run the job to its end; return the exit code, negative for a signal."""
        return self.start(settings).wait(_LIFE_TIMEOUT_S)

    def expect_death(self, settings: JobSettings) -> None:
        """Run the job, which ends by its own strike."""
        assert self.live(settings) == -9, self.log()[-3000:]
        assert settings.marker.exists()

    def log(self) -> str:
        """Return the output of all runs."""
        return (self.directory / "job.log").read_text("utf-8", "replace")

    def await_file(self, path: Path) -> None:
        """Wait until a run of the job, or a surviving part of one, has made this file."""
        wait_for(path.exists, f"{path.name} never came: see {self.directory / 'job.log'}", timeout_s=_LIFE_TIMEOUT_S)


@pytest.fixture
def job(broker: Broker, log_name: str, tmp_path: Path) -> Job:
    """Return a job on a log of its own."""
    return Job(SparkLog.create(log_name, broker.bootstrap, tmp_path), tmp_path)


@pytest.mark.xdist_group("killed driver")
@pytest.mark.parametrize(
    ("points", "last_point"),
    [
        pytest.param((), "commit-made", id="some"),
        pytest.param(("task-done", "task-begun", "commit-made"), "after-commit", id="all", marks=pytest.mark.soak),
    ],
)
def test_a_driver_that_is_killed_or_replaced_changes_nothing(job: Job, points: Sequence[str], last_point: str) -> None:
    """A driver that is killed or replaced changes nothing in the state, which equals the model.

    It is killed with a task begun, a task done, before and after a batch's Commit, and with a failing task on top.
    Another driver starts from a copy of the checkpoint while one is about to commit, which gets Fenced and ends with an
    error.

    The worker that saw each death ignores the signal that ends its kind, and goes on as long as it can. Two of them go
    on only after the last run has finished: one with a task's chunks, one with a void Commit. Every day the driver is
    killed with a Commit made, and in a soak at each step.
    """
    kills = [
        replace(job.settings, strike="kill", point=point, batch=batch, hold=hold)
        for point, batch, hold in (("task-done", 0, False), ("task-begun", 1, True), ("commit-made", 3, True))
        if point in points
    ]
    for settings in kills:
        job.expect_death(settings)
    held = replace(job.settings, strike="wait", point="before-commit", batch=4, hold=True)
    older = job.start(held)
    job.await_file(held.marker)
    newer = replace(job.settings, checkpoint=str(job.directory / "copy"))
    shutil.copytree(job.settings.checkpoint, newer.checkpoint)
    last_kill = replace(newer, strike="kill", point=last_point, batch=5, hold=last_point == "commit-made")
    job.expect_death(last_kill)
    last_life = replace(newer, strike="fail", point="task-done", batch=6)
    assert job.live(last_life) == 0, job.log()[-3000:]
    assert last_life.marker.exists(), "the task failed once, and was tried again"

    expected = fold_rows(BATCHES)
    assert job.rig.numbers() == expected
    commits = job.rig.last_commit("job")
    assert commits is not None
    assert (commits.checkpoint.id, commits.metadata["batchId"]) == (7, 6)

    held.released.touch()
    assert older.wait(_LIFE_TIMEOUT_S) > 0
    assert "Fenced" in job.log()
    for settings in (held, *(kill for kill in (*kills, last_kill) if kill.hold)):
        job.await_file(settings.outcome)
        came_of_a_commit = settings.point != "task-begun"
        assert not came_of_a_commit or settings.outcome.read_text("utf-8").startswith("Fenced"), settings.point
    assert job.rig.numbers() == expected
    assert job.rig.last_commit("job") == commits
