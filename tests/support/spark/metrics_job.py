"""A Spark driver that Prometheus scrapes, in a process of its own: the client decides at its import how it counts.

Run with the bootstrap address and a directory for each of two jobs, each with a log of its directory's name. All
processes of the first job count together; executors of the second one count in processes of their own, in its
`executors`. A scrape of the driver after each is a line of JSON: by sample name, a list of labels and value.
"""

import json
import os
import sys
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry
from pyspark.sql import SparkSession

from statelog.operate import export_metrics
from statelog.spark.sink import upsert
from tests.support.spark.rig import Row, SparkLog, read_stream, run_stream, scattered, write_batches
from tests.support.spark.session import open_session

__all__ = ["BATCHES", "Samples", "run_job", "scrape"]

Samples = dict[str, list[tuple[dict[str, str], float]]]

BATCHES: list[list[Row]] = [[(key, key * 10) for key in range(50)], [(key, -key) for key in range(0, 50, 3)]]


def main(bootstrap: str, together: Path, apart: Path) -> None:
    """Run both jobs, each with its scrape. Their sessions share a JVM, whose start is most of the cost."""
    export_metrics()
    settings = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.PROMETHEUS_MULTIPROC_DIR": str(apart / "executors"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    _tell(open_session({}), bootstrap, together)
    _tell(open_session(settings, master="local-cluster[1,2,1024]"), bootstrap, apart)


def _tell(spark: SparkSession, bootstrap: str, directory: Path) -> None:
    made = SparkLog.create(directory.name, bootstrap, directory)
    made.log.close()
    run_job(spark, made, directory)
    sys.stdout.write(f"{json.dumps(scrape(REGISTRY))}\n")
    spark.stop()


def run_job(spark: SparkSession, made: SparkLog, directory: Path) -> None:
    """Run a stream and an upsert of the same rows, and a read."""
    write_batches(directory / "input", BATCHES)
    given = {**made.options, "writerId": "stream", "uniqueKeys": "true"}
    run_stream(scattered(read_stream(spark, directory / "input")), "statelog", given, directory / "checkpoint")
    rows = scattered(read_stream(spark, directory / "input"))
    into = upsert(made.log.name, made.where, writer="upsert", unique_keys=True, take_over=True)
    start = rows.writeStream.foreachBatch(into).option("checkpointLocation", str(directory / "upserted"))
    start.trigger(availableNow=True).start().awaitTermination()
    assert spark.read.format("statelog").options(**made.options).load().count() == 50


def scrape(registry: CollectorRegistry) -> Samples:
    """Return the samples of statelog in a scrape."""
    samples: Samples = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.startswith("statelog_"):
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
