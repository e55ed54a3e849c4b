"""The examples in docstrings of the Spark room run in a Spark session, and each of its names has one."""

import doctest
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import statelog.spark
from statelog.log import Where
from statelog.producer.writer import Writer
from tests.support.rigs.log import where_at
from tests.support.rooms import SOURCE
from tests.support.services.broker import Broker

_SPARK = SOURCE / "spark"


def examples(*, spark: bool) -> list[doctest.DocTest]:
    """Return the examples of the room that needs Spark, or those of all others."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in _modules(spark) for test in finder.find(import_module(name), name)]
    return [test for test in found if test.examples]


def run_example(example: doctest.DocTest, names: Mapping[str, Any]) -> None:
    """Run it on these names. AssertionError shows the actual output."""
    said: list[str] = []
    example.globs = dict(names)
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append, clear_globs=False)
    assert result.failed == 0, "".join(said)
    assert result.attempted


def _modules(spark: bool) -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(_SPARK) == spark and ">>> " in path.read_text("utf-8"):
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.parametrize("example", examples(spark=True), ids=lambda test: str(test.name))
def test_an_example_does_what_it_says(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path, example: doctest.DocTest
) -> None:
    """An example does as it says, with a session, a log of four partitions and two keys, its place, and a stream."""
    events = spark.readStream.format("rate").load()
    counts = events.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS key", "X'31' AS value")
    where = where_at(broker.bootstrap, tmp_path)
    with statelog.open(log_name, where, create=statelog.LogOptions(partitions=4)) as log:
        with Writer(log, "w") as writer:
            writer.put(b"alice", b"1")
            writer.put(b"bob", b"2")
            writer.commit()
        room = {"Where": Where} | {name: getattr(statelog.spark, name) for name in statelog.spark.__all__}
        run_example(example, {**room, "spark": spark, "log": log, "where": where, "counts": counts})


def test_every_function_has_an_example() -> None:
    """Every function has an example in its docstring, where `help` shows it."""
    shown = {test.name.rpartition(".")[2] for test in examples(spark=True)}
    functions = {name for name in statelog.spark.__all__ if name.islower()}
    assert functions <= shown
