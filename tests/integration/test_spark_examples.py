"""The examples in docstrings of the Spark room run in a Spark session, and its names have one."""

import doctest

import pytest
from pyspark.sql import SparkSession

import statelog.spark
from tests.support.docstring_examples import examples, run_example
from tests.support.rigs.log import twin_rig

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("example", examples(spark=True), ids=lambda test: str(test.name))
def test_an_example_does_what_it_says(spark: SparkSession, example: doctest.DocTest) -> None:
    """With a session, a log of four partitions and streaming counts at hand."""
    events = spark.readStream.format("rate").load()
    counts = events.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS key", "X'31' AS value")
    with twin_rig("log").create(partitions=4) as log:
        room = {name: getattr(statelog.spark, name) for name in statelog.spark.__all__}
        run_example(example, {**room, "spark": spark, "log": log, "counts": counts})


def test_every_function_has_an_example() -> None:
    """In its docstring, where `help` shows it."""
    shown = {test.name.rpartition(".")[2] for test in examples(spark=True)}
    functions = {name for name in statelog.spark.__all__ if name.islower()}
    assert functions <= shown
