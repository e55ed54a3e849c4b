"""The examples for Spark on a real broker, in one session: each is right, and leaves no log behind."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from examples.spark import alarms, cdc, lake, windows
from examples.spark.place import Example, Place, run
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from tests.support.services.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_STORE = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture(scope="module", autouse=True)
def _store(spark: SparkSession) -> Iterator[None]:
    """Yield the state store of the examples' own session."""
    spark.conf.set(_STORE, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(_STORE)


@pytest.mark.parametrize(
    "example", [module.EXAMPLE for module in (alarms, cdc, lake, windows)], ids=lambda made: made.name
)
def test_an_example_is_right_and_leaves_nothing(spark: SparkSession, example: Example, broker: Broker) -> None:
    """An example's log equals the result of a plain program; then log and files are deleted."""
    places: list[Place] = []

    def noted(session: SparkSession, place: Place) -> bool:
        places.append(place)
        return example.program(session, place)

    assert run(spark, replace(example, program=noted), broker.bootstrap)
    (place,) = places
    assert not place.directory.exists()
    with closing(ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))) as kafka:
        assert [kafka.describe_topic(topic) for topic in (place.log, f"{place.log}.ledger")] == [None, None]
