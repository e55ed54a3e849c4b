"""A Spark job on executors of their own: any fate of a task leaves the model's state, and no extra commit."""

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.services.broker import Broker
from tests.support.spark.clusters import spark_environment, standalone_master
from tests.support.spark.rig import Row, SparkLog, fold_rows, write_batches
from tests.support.spark.strikes import JobSettings

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(600)]

BATCHES: list[list[Row]] = [[(key, number * 100 + key) for key in range(40)] for number in range(4)]
_MASTER = "local-cluster[2,1,900]"
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.mark.parametrize(
    ("strike", "point", "extra"),
    [
        ("fail", "task-done", {}),
        ("worker", "task-done", {}),
        ("worker", "task-begun", {}),
        ("executor", "task-done", {}),
        ("copied", "task-done", _SPECULATION),
        ("copied", "task-begun", _SPECULATION),
    ],
)
def test_what_happens_to_a_task_does_not_show(
    broker: Broker, log_name: str, tmp_path: Path, strike: str, point: str, extra: dict[str, str]
) -> None:
    """A task that fails after its write, loses its worker or executor, or has a speculative copy does not show.

    There is one Open, one Commit for each batch, and every row once.
    """
    environment = {
        **os.environ,
        **spark_environment(),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    master: AbstractContextManager[str] = nullcontext(_MASTER)
    if strike == "copied":
        master = standalone_master(tmp_path, environment)
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    write_batches(tmp_path / "input", BATCHES)
    settings = JobSettings(
        options={**rig.options, "writerId": "job", "uniqueKeys": "true"},
        source=str(tmp_path / "input"),
        checkpoint=str(tmp_path / "checkpoint"),
        directory=str(tmp_path),
        strike=strike,
        point=point,
        batch=2,
        extra={"spark.executor.memory": "900m", "spark.executor.cores": "1", **extra},
    )
    with master as url:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.spark.job", replace(settings, master=url).to_json()],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert settings.marker.exists()
    assert settings.copy.exists() or strike != "copied", "Spark did not speculate"
    assert rig.numbers() == fold_rows(BATCHES)
    assert rig.opens() == 1
    last = rig.last_commit("job")
    assert last is not None
    assert (last.checkpoint.id, last.metadata["batchId"]) == (len(BATCHES), len(BATCHES) - 1)
