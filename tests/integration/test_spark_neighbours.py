"""Spark's own Kafka connector with statelog: as a source before our sink, and as a reader of a log's topic."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.errors import Unavailable, UncommittedChanges
from statelog.producer.writer import Writer
from statelog.reading.planner import plan_changes
from tests.support.processes.parts import output
from tests.support.services.broker import Broker
from tests.support.spark import neighbour
from tests.support.spark.connector import CONNECTOR, connector_jars
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def jars() -> list[str]:
    """Return the connector's jars, or skip the test with a reason."""
    try:
        return [str(path) for path in connector_jars()]
    except Unavailable as error:
        pytest.skip(f"{CONNECTOR} cannot be had: {error}")


def run(given: dict[str, Any]) -> str:
    """Return the program's output."""
    return output(neighbour.main, json.dumps(given), timeout_s=400)


def test_the_kafka_source_and_our_sink_in_one_job(
    broker: Broker, log_name: str, topic_name: str, tmp_path: Path, jars: list[str]
) -> None:
    """Records with repeated keys, and null values that delete, are the log's state after a stream of several batches.

    Then Spark's Kafka source reads the log's own topic, over the ranges that the ledger lists. Our decoding of chunks
    leaves the same state, without void chunks.
    """
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path, key_type="bytes", value_schema=None)
    model: dict[bytes, bytes] = {}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 1, 1)])[topic_name].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(450):
        key, value = b"key-%d" % (number * 7 % 60), None if number % 9 == 4 else b"value-%d" % number
        producer.produce(topic_name, value, key)
        model.pop(key, None)
        if value is not None:
            model[key] = value
    assert producer.flush(60) == 0

    given: dict[str, Any] = {"options": rig.options, "jars": jars, "topic": topic_name, "directory": str(tmp_path)}
    run(given)
    assert rig.state() == model
    last = rig.last_commit("from-kafka")
    assert last is not None
    assert last.checkpoint.id >= 4

    writer = Writer(rig.log, "void")
    writer.put(b"never", b"committed")
    writer.persist().result()
    with pytest.warns(UncommittedChanges):
        writer.close()
    plan = plan_changes(rig.log)
    assert plan.value_schema_id is not None
    given["offsets"] = {part: (ranges[0][0], ranges[-1][1]) for part, ranges in plan.replay.ranges.items()}
    given["listed"] = {
        part: sorted(offset for entry in entries for offset in entry.offsets)
        for part, entries in plan.replay.listed.items()
    }
    given["schema_hex"] = rig.log.change_schema(plan.value_schema_id).serialize().to_pybytes().hex()
    (line,) = [line for line in run(given).splitlines() if line.startswith("RESULT ")]
    state: dict[bytes, bytes] = {}
    for op, key_hex, value_hex in json.loads(line.removeprefix("RESULT ")):
        state.pop(bytes.fromhex(key_hex), None)
        if op == 0:
            state[bytes.fromhex(key_hex)] = bytes.fromhex(value_hex)
    assert state == model
