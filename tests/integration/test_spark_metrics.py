"""Metrics of a Spark job on a real broker: a scrape of the driver shows the work of Spark's own Python processes."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from pyspark.sql import SparkSession

from statelog.operate import export_metrics
from tests.support.services.broker import Broker
from tests.support.spark.metrics_job import BATCHES, Samples, run_job, scrape
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_ROWS = 2 * sum(map(len, BATCHES))
"""Written once by the stream and once by `upsert`."""


class Scraped(NamedTuple):
    """The result of a driver's scrape after a job: the job's log, the samples, and the job's directory."""

    log: str
    samples: Samples
    directory: Path


@pytest.fixture(scope="module")
def scraped(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> list[Scraped]:
    """Return the scrapes after one job whose processes share a directory, and one whose executors have another."""
    directory = tmp_path_factory.mktemp("metrics")
    jobs = [directory / f"{how}-{uuid.uuid4().hex[:12]}" for how in ("together", "apart")]
    for made in (directory / "counted", *jobs, jobs[1] / "executors"):
        made.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.metrics_job", broker.bootstrap, *map(str, jobs)],
        check=False, capture_output=True, text=True, timeout=400,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory / "counted")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [Scraped(job.name, samples, job) for job, samples in zip(jobs, lines, strict=True)]


def _sum(samples: Samples, name: str, **labels: Any) -> float:
    return sum(value for found, value in samples.get(name, ()) if labels.items() <= found.items())


def test_the_driver_shows_what_workers_do(scraped: list[Scraped]) -> None:
    """The driver shows with one shared directory: commits and their changes, opens, and all requests of workers."""
    log_name, samples, _ = scraped[0]
    assert _sum(samples, "statelog_commit_changes_total", log=log_name) == _ROWS
    assert _sum(samples, "statelog_commit_seconds_count", log=log_name) == 2 * len(BATCHES)
    assert _sum(samples, "statelog_commit_bytes_total", log=log_name) > 0
    assert _sum(samples, "statelog_open_seconds_count", log=log_name) >= 1
    assert _sum(samples, "statelog_requests_total", log=log_name, port="kafka", operation="send") > 2 * len(BATCHES)
    assert _sum(samples, "statelog_requests_total", log=log_name, port="store", operation="read") >= 1
    assert _sum(samples, "statelog_step_errors_total") == 0


def test_executors_on_other_machines_count_there(scraped: list[Scraped]) -> None:
    """Commits and their changes are whole on the driver; the tasks' requests are counted on their own machines."""
    log_name, samples, directory = scraped[1]
    assert _sum(samples, "statelog_commit_changes_total", log=log_name) == _ROWS
    assert _sum(samples, "statelog_commit_seconds_count", log=log_name) == 2 * len(BATCHES)
    counted: Any = MultiProcessCollector  # The client annotates nothing there.
    there = [one for family in counted(None, str(directory / "executors")).collect() for one in family.samples]
    sent = {"log": log_name, "port": "kafka", "operation": "send"}
    of_tasks = sum(one.value for one in there if one.name == "statelog_requests_total" and one.labels == sent)
    assert of_tasks > _sum(samples, "statelog_requests_total", **sent) > 0


def test_alone_a_driver_sees_no_worker(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Without a shared directory the driver shows its own process alone, where Spark's sink and source do nothing."""
    registry = CollectorRegistry()
    end = export_metrics(registry)
    try:
        made = SparkLog.create(log_name, broker.bootstrap, tmp_path)
        made.log.close()
        run_job(spark, made, tmp_path)
        samples = scrape(registry)
    finally:
        end()
    assert _sum(samples, "statelog_requests_total", log=log_name) > 0, "it shows itself"
    assert "statelog_commit_changes_total" not in samples
