"""The Pythons of a cluster, and the way of statelog to them: a standalone master with two workers."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow
import pytest

from tests.support.services.broker import Broker
from tests.support.spark.clusters import spark_environment, standalone_master
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

_SITE = Path(pyarrow.__file__).parents[1]
_SOURCE = Path(__file__).parents[2] / "src"
_JOB = Path(__file__).parents[1] / "support" / "spark" / "python_job.py"
_NEEDED = ("confluent_kafka", "dateutil", "fastavro", "fsspec", "numpy", "pandas", "pyarrow", "pytz", "six", "xxhash")
"""The packages that tasks need, with statelog; a cluster has Spark."""
_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "700m",
}


@pytest.mark.parametrize("way", ["py-files", "archives"])
def test_executors_have_a_python_of_their_own(way: str, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """`format("statelog")`, once registered, runs in the executors' Python and never in the driver's, which they lack.

    statelog comes as a file of the job's, with its dependencies installed; or in an environment that came as an
    archive.
    """
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    home, calls = tmp_path / "home", tmp_path / "calls"
    _make_environment(home, calls)
    driver = _script(tmp_path / "driver", _refuse_executors() + f'exec {sys.executable} "$@"')
    if way == "py-files":
        python = str(home / "bin" / "python")
        more = ["--py-files", shutil.make_archive(str(tmp_path / "statelog"), "zip", _SOURCE)]
    else:
        for path in _SOURCE.iterdir():
            (home / "site" / path.name).symlink_to(path)
        with tarfile.open(tmp_path / "jobs.tar.gz", "w:gz", dereference=True, compresslevel=1) as archive:
            for folder in ("bin", "site"):
                archive.add(home / folder, folder)
        (tmp_path / "jobs").symlink_to(home)  # For the planning workers, which are children of the driver's JVM.
        python, more = "./jobs/bin/python", ["--archives", f"{tmp_path / 'jobs.tar.gz'}#jobs"]
    environment = {**os.environ, **spark_environment()}
    environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": str(driver)}
    environment.pop("PYTHONPATH", None)
    printed = _submitted(environment, [*more, str(_JOB), json.dumps(rig.options)], tmp_path)
    assert "sum=1560" in printed, printed[-5000:]
    assert rig.numbers() == {key: key * 2 for key in range(40)}
    assert "CoarseGrainedExecutorBackend" in calls.read_text()


def _submitted(environment: dict[str, str], job: list[str], directory: Path) -> str:
    """Return the output of `spark-submit`."""
    settings = [text for name, value in _SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    submit = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    with standalone_master(directory, environment) as url:
        command = [submit, "--master", url, *settings, *job]
        ran = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, timeout=600, check=False
        )
    return ran.stdout + ran.stderr


def _make_environment(home: Path, calls: Path) -> None:
    """Make a Python without statelog that works wherever it is unpacked, and records its callers."""
    (home / "site").mkdir(parents=True)
    (home / "bin").mkdir()
    for path in _SITE.iterdir():
        if path.name.startswith(_NEEDED):
            (home / "site" / path.name).symlink_to(path)
    _script(
        home / "bin" / "python",
        f"tr '\\0' ' ' < /proc/$PPID/cmdline >> {calls}\n"
        'here=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
        f'PYTHONPATH="$PYTHONPATH:$here/site" exec {sys.executable} -S "$@"',
    )


def _refuse_executors() -> str:
    """Return a script that fails on executors, as if their machines had no such file."""
    return "tr '\\0' ' ' < /proc/$PPID/cmdline | grep -q CoarseGrainedExecutorBackend && exit 127\n"


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return path
