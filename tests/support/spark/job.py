"""A Spark job as a process of its own, for tests that kill its driver: files -> scattered tasks -> a statelog sink that
strikes, as tests/support/spark/strikes.py has it.

Run with a JSON object as its only argument: the `JobSettings` of one incarnation.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.support.spark.rig import read_stream, run_stream, scattered
from tests.support.spark.session import open_session
from tests.support.spark.strikes import HOLD_TIMEOUT_S, VARIABLE, JobSettings, StrikingSource

__all__: list[str] = []


def main() -> None:
    """Run the job to the end of its input."""
    settings = replace(JobSettings(**json.loads(sys.argv[1])), driver=os.getpid())
    os.environ[VARIABLE] = settings.to_json()
    given = {f"spark.executorEnv.{VARIABLE}": settings.to_json(), "spark.driver.memory": "512m", **settings.extra}
    spark = open_session(given, master=settings.master, log_level="OFF")
    spark.dataSource.register(StrikingSource)
    rows = scattered(read_stream(spark, Path(settings.source)))
    checkpoint = Path(settings.checkpoint)
    run_stream(rows, "statelog_striking", settings.options, checkpoint, timeout_s=HOLD_TIMEOUT_S)
    spark.stop()


if __name__ == "__main__":
    main()
