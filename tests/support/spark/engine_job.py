"""Rounds of the Spark engine on a cluster of its own, with a real failure in a task of each: see `Misfortune`.

python -m tests.support.spark.engine_job KIND BOOTSTRAP DIRECTORY   # one JSON line for each misfortune
"""

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from statelog.spark.engine import SparkEngine, TaskDone, TaskWork
from statelog.spark.option_texts import log_address
from tests.support.spark.clusters import KINDS, spark_environment
from tests.support.spark.engine_pair import EnginePair, run_paths
from tests.support.spark.engine_tasks import Misfortune, StruckWork, engine_of, parts_of

__all__ = ["CASES"]

CASES = (
    ("worker", "begun", 0),
    ("worker", "done", 1),
    ("copied", "begun", 0),
    ("copied", "done", 1),
    ("executor", "done", 0),
    ("none", "", -1),
)
"""Kind, point and stage of each round's misfortune: stage 0 folds, 1 merges. The last round has none."""

_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


def _struck_round(spark: SparkSession, pair: EnginePair, case: tuple[str, str, int], directory: Path) -> None:
    """Run a round of two tasks in each stage: its snapshot is the local engine's, and one attempt's runs are taken."""
    kind, point, struck_stage = case
    directory.mkdir()
    misfortune = Misfortune(kind=kind, point=point, directory=directory)

    def strike(stage: int, work: TaskWork) -> TaskWork:
        if stage != struck_stage:
            return work
        return StruckWork(**parts_of(work), misfortune=misfortune)

    maker = partial(SparkEngine, spark=spark, where=log_address(pair.remote.options), most_tasks=2, task_bytes=1)
    stages: list[dict[int, TaskDone]] = []
    pair.change(200)
    pair.roll_up(engine_of(maker, strike, stages))
    if kind == "none":
        assert run_paths(pair.remote) == pair.all_named(), "the other attempts' runs are deleted"
        assert not list(pair.directory.glob("statelog-round-*")), "no scratch directory is left"
        return
    assert [len(done) for done in stages] == [2] * len(stages)
    taken = {run.path for run in stages[struck_stage][0].runs}
    by_attempt = misfortune.runs_by_attempt()
    assert misfortune.attempts() > 1
    assert not misfortune.alone.exists(), "Spark did not speculate"
    assert by_attempt.count(taken) == 1, (taken, by_attempt)
    assert len(by_attempt) > 1 or point == "begun", "the other attempts' runs existed"


def main() -> int:
    """Start the cluster, play the rounds, end it."""
    kind, bootstrap, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    directory.mkdir(parents=True)
    os.environ.update(spark_environment())
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # Workers unpickle our own classes.
    right = True
    with KINDS[kind](directory, _SPECULATION) as spark:
        pair = EnginePair(directory.name, bootstrap, directory)
        for number, case in enumerate(CASES):
            error = ""
            try:
                _struck_round(spark, pair, case, directory / f"case-{number}")
            except Exception:  # noqa: BLE001  # A round that fails is a line, and the next one runs.
                error, right = traceback.format_exc(), False
            sys.stdout.write(json.dumps({"case": case, "error": error}) + "\n")
            sys.stdout.flush()
    return 0 if right else 1


if __name__ == "__main__":
    # Under its own name, so that workers find the classes of this module and not the classes of a script.
    from tests.support.spark import engine_job

    sys.exit(engine_job.main())
