"""Metrics of a Spark job on a real broker: a scrape of the driver shows what Spark's own Python processes do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def _scraped(broker: Broker, log: str, directory: Path, *more: Path) -> Samples:
    counted = directory / "counted"
    counted.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.metrics_job", broker.bootstrap, log, *map(str, (directory, *more))],
        check=False, capture_output=True, text=True, timeout=400,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(counted)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    samples: Samples = json.loads(done.stdout.splitlines()[-1])
    return samples


def _sum(samples: Samples, name: str, **labels: Any) -> float:
    return sum(value for found, value in samples.get(name, ()) if labels.items() <= found.items())


def test_the_driver_shows_what_workers_do(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """With one directory for all of them: commits and their changes, opens, and requests of planning, tasks, reads."""
    samples = _scraped(broker, log_name, tmp_path)
    assert _sum(samples, "statelog_commit_changes_total", log=log_name) == _ROWS
    assert _sum(samples, "statelog_commit_seconds_count", log=log_name) == 2 * len(BATCHES)
    assert _sum(samples, "statelog_commit_bytes_total", log=log_name) > 0
    assert _sum(samples, "statelog_open_seconds_count", log=log_name) >= 1
    assert _sum(samples, "statelog_requests_total", log=log_name, port="kafka", operation="send") > 2 * len(BATCHES)
    assert _sum(samples, "statelog_requests_total", log=log_name, port="store", operation="read") >= 1
    assert _sum(samples, "statelog_step_errors_total") == 0


def test_executors_on_other_machines_count_there(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Commits, and how much they made visible, are whole on the driver all the same; what tasks ask is not there."""
    executors = tmp_path / "executors"
    executors.mkdir()
    samples = _scraped(broker, log_name, tmp_path, executors)
    assert _sum(samples, "statelog_commit_changes_total", log=log_name) == _ROWS
    assert _sum(samples, "statelog_commit_seconds_count", log=log_name) == 2 * len(BATCHES)
    counted: Any = MultiProcessCollector  # The client annotates nothing there.
    there = [one for family in counted(None, str(executors)).collect() for one in family.samples]
    sent = {"log": log_name, "port": "kafka", "operation": "send"}
    of_tasks = sum(one.value for one in there if one.name == "statelog_requests_total" and one.labels == sent)
    assert of_tasks > _sum(samples, "statelog_requests_total", **sent) > 0


def test_alone_a_driver_sees_no_worker(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Without that directory the driver shows its own process alone, in which Spark's sink and source do nothing."""
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
