"""SIGKILL of a streaming query, driver, JVM and workers at once, during others' commits and rounds."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.errors import Unavailable
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.schemas.snapshot.retention import RetentionPolicy
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker
from tests.support.spark.connector import CONNECTOR, connector_jars
from tests.support.spark.rig import SparkLog, write_numbers
from tests.support.spark.stream_job import StreamJob

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_OPEN_DEATHS = 3
Written = list[tuple[int, int, int | None]]


@contextmanager
def _writing(rig: SparkLog, scratch: Path, rng: random.Random) -> Generator[Callable[[], Written]]:
    """Commit and run rounds in a thread, until the block ends; yield a function for the commits: (position, key, n)."""
    stop, written = threading.Event(), Written()

    def write() -> None:
        settings = MaterializerSettings(scratch=scratch, retention=RetentionPolicy(keep=2, min_age_s=0.0))
        kafka, root = {"bootstrap.servers": rig.bootstrap}, str(rig.root)
        own = Log.open(rig.log.name, where_at(kafka, root))
        with own as log, Writer(log, "w") as writer:
            while not stop.wait(0.2):
                changes = {key: None if rng.random() < 0.2 else rng.randrange(1000) for key in rng.sample(range(40), 8)}
                write_numbers(writer, changes)
                position = writer.commit().offset + 1
                written.extend((position, key, n) for key, n in changes.items())
                if rng.random() < 0.1:
                    run_round(log, settings)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: written
    finally:
        stop.set()
        thread.join()


def _rows(job: StreamJob) -> Written:
    """Return the rows in the file sink's own log."""
    files: list[Path] = []
    for entry in (job.rows / "_spark_metadata").iterdir():
        if entry.name.startswith("."):
            continue
        lines = entry.read_text("utf-8").splitlines()[1:]
        files += [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]
    rows = [row for path in sorted(set(files)) for row in pq.read_table(path).to_pylist()]
    return sorted((row["position"], row["key"], row["value"]["n"] if row["value"] else None) for row in rows)


def _topic_rows(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Return key and value of all records of a topic, in the order of its only partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes, bytes]] = []
    try:
        with _ends_of(bootstrap, topic) as end:
            while len(found) < end():
                for message in consumer.consume(1000, timeout=5):
                    key, value = message.key(), message.value()
                    assert message.error() is None and isinstance(key, bytes) and isinstance(value, bytes)
                    found.append((key, value))
    finally:
        consumer.close()
    return found


@contextmanager
def _ends_of(bootstrap: str, topic: str) -> Generator[Callable[[], int]]:
    """Yield a function that returns the end of the topic's only partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        yield lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    finally:
        consumer.close()


def _row(value: bytes) -> tuple[int, int, int | None]:
    """Return position, key and n of a record."""
    row = json.loads(value)
    return row["position"], row["key"], row["value"]["n"] if row.get("value") else None


def _begin(directory: Path) -> int:
    """Return where the query began, by Spark's own log of offsets: rounds may have cut off earlier commits."""
    offsets = (path for path in (directory / "checkpoint" / "offsets").iterdir() if path.name.isdecimal())
    newest = max(offsets, key=lambda path: int(path.name))  # Each says it, and Spark retains a hundred.
    return int(json.loads(newest.read_text("utf-8").splitlines()[-1])["beginPlace"][0])


def _storm(rig: SparkLog, directory: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    options = {**rig.options, "startingPosition": "earliest", "readerId": "killed", "maxChangesPerTrigger": "100"}
    job = StreamJob(options=options, directory=str(directory), to_end=False)
    with _writing(rig, directory, rng) as written:
        for _ in range(kills):
            job.kill_after(rng.randint(1, 4), rng.random() / 2)
    assert replace(job, to_end=True).start().wait(280) == 0
    begin = _begin(directory)
    expected = sorted((row for row in written() if row[0] > begin), key=lambda row: row[:2])
    assert _rows(job) == expected
    assert len(expected) > 100, "and there was something to lose"


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("killed stream")
def test_a_killed_query_reads_every_change_once(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """After a death among commits and rounds, and a run to the end, the sink has the history, change by change."""
    _storm(SparkLog.create(log_name, broker.bootstrap, tmp_path), tmp_path, kills=1, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_storm_of_kills(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Thirty deaths, by a seed that differs in every run, leave the history in the sink."""
    seed = random.SystemRandom().randrange(1 << 32)
    _storm(SparkLog.create(log_name, broker.bootstrap, tmp_path), tmp_path, kills=30, seed=seed)


def _die_in_open_batches(job: StreamJob, bootstrap: str, rng: random.Random) -> list[tuple[int, int]]:
    """Kill the job until it has died often enough with records in the topic that Spark has not committed.

    Return the positions (start, end] of those micro-batches.
    """
    opened: list[tuple[int, int]] = []
    with _ends_of(bootstrap, job.topic) as end:
        seen = {"batches": -1, "end": 0}

        def records_came() -> bool:
            batches = job.batches()
            if batches != seen["batches"]:
                seen.update(batches=batches, end=end())
            return end() > seen["end"] and job.batches() == batches

        while len(opened) < _OPEN_DEATHS:
            job.kill_when(rng.randint(1, 4), records_came)
            found = job.open_batch()
            opened += [] if found is None else [found]
    return opened


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_spark_s_kafka_sink_has_every_change_and_repeats_only_what_was_open(
    broker: Broker, log_name: str, topic_name: str, tmp_path: Path
) -> None:
    """Spark's Kafka sink has every change, and repeats only changes of micro-batches that were open at a death.

    It is killed while records of an open micro-batch are in the topic. A repeated change is the same byte for byte. So
    the topic folds to the state by offset and, for late records, by position.
    """
    try:
        jars = [str(path) for path in connector_jars()]
    except Unavailable as error:
        pytest.skip(f"{CONNECTOR} cannot be had: {error}")
    rng = random.Random(7)
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic_name, 1, 1)])[topic_name].result(30)
    options = {**rig.options, "startingPosition": "earliest", "readerId": "killed", "maxChangesPerTrigger": "100"}
    job = StreamJob(options=options, directory=str(tmp_path), to_end=False, topic=topic_name, jars=tuple(jars))
    with _writing(rig, tmp_path, rng) as written:
        opened = _die_in_open_batches(job, broker.bootstrap, rng)
    assert replace(job, to_end=True).start().wait(280) == 0

    records = _topic_rows(broker.bootstrap, topic_name)
    begin = _begin(tmp_path)
    expected = sorted((row for row in written() if row[0] > begin), key=lambda row: row[:2])
    distinct = sorted({_row(value) for _, value in records}, key=lambda row: row[:2])
    assert distinct == expected, "every change of every commit, and nothing else"
    assert len(set(records)) == len(expected), "repeated records are the same, byte for byte"
    again = {_row(value)[0] for (_, value), count in Counter(records).items() if count > 1}
    assert again, "some records were repeated"
    assert all(any(start < position <= end for start, end in opened) for position in again)
    by_offset = {key: _row(value) for key, value in records}
    by_position = {key: max(_row(value) for other, value in records if other == key) for key in by_offset}
    assert by_offset == by_position
    folded = {int(key): n for key, (_, _, n) in by_position.items() if n is not None}
    assert folded == rig.numbers()
