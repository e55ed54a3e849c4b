"""Spark's Python workers between two tasks."""

import subprocess
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_WORKER = """
import gc, sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[1])
from statelog.spark.clients import ProcessCache
ProcessCache().get("anything")
print(gc.get_freeze_count())
"""


def test_what_workers_import_is_spared_from_their_collections(spark: SparkSession) -> None:
    """Spark's workers, which collect all garbage after every task, skip their imports once they used a client of ours.

    Nothing is skipped in a program of the user's.
    """

    def mains(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            spec = sys.modules["__main__"].__spec__
            yield pa.RecordBatch.from_pydict({"main": [spec.name if spec else ""]})

    worker: str = spark.range(1).mapInArrow(mains, "main string").collect()[0].main
    spared = [
        int(subprocess.run([sys.executable, "-c", _WORKER, main], capture_output=True, check=True, timeout=60).stdout)
        for main in (worker, "program")
    ]
    assert spared[0] > 10_000
    assert spared[1] == 0
