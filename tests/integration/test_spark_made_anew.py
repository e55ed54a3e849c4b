"""A log that was deleted and re-created, seen by workers that opened the old one: no old knowledge counts."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from statelog.errors import IdentityChanged
from statelog.log import Log, Where
from statelog.materializer import run_round
from statelog.producer.writer import Writer
from statelog.spark.clients import cached_log
from statelog.spark.data_source import StatelogSource
from statelog.spark.option_texts import log_address
from tests.support.processes.starts import in_fork
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog, write_numbers

pytestmark = pytest.mark.broker
_OPTIONS = {"state": {}, "stream": {"startingPosition": "earliest"}, "commits": {"read": "commits"}}


@pytest.mark.parametrize("kind", ["state", "stream", "commits"])
def test_a_worker_that_knows_the_old_log_reads_all_of_the_new_one(
    broker: Broker, log_name: str, tmp_path: Path, kind: str
) -> None:
    """A worker that opened the old log plans, streams and counts all of the new one's key groups and changes.

    Another worker has planned, on a log of more key groups; this one has opened nothing since.
    """
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    rig.log.close()
    cached_log(log_address(rig.options))
    Log.delete(log_name, Where({"bootstrap.servers": rig.bootstrap}, str(rig.root)))
    anew = SparkLog.create(log_name, broker.bootstrap, tmp_path, partitions=8, key_groups=64)
    with anew.log as log, Writer(log, "w") as writer:
        write_numbers(writer, {key: key for key in range(100)})
        writer.commit()
    path = tmp_path / "planned"

    def plan() -> None:
        source = StatelogSource({**rig.options, **_OPTIONS[kind]})
        columns = source.schema()
        if kind != "stream":
            path.write_bytes(pickle.dumps((source, columns)))
            return
        stream: Any = source.streamReader(columns)
        begin = stream.initialOffset()
        parts = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
        path.write_bytes(pickle.dumps((stream, parts)))

    assert in_fork(plan) == 0
    reader, parts = pickle.loads(path.read_bytes())
    if kind != "stream":
        reader = reader.reader(parts)
        parts = reader.partitions()
    batches = [batch for part in parts for batch in pickle.loads(pickle.dumps(reader)).read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    if kind == "commits":
        assert [row["changes"] for row in rows] == [100]
    else:
        assert sorted(row["key"] for row in rows) == list(range(100))


def test_a_task_of_the_old_log_reads_nothing_of_the_new_one(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A task of the old log, whose snapshot is deleted, reads nothing of the new one, where neither was opened."""

    def made(number: int) -> SparkLog:
        rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
        with rig.log, Writer(rig.log, "w") as writer:
            write_numbers(writer, {1: number})
            writer.commit()
            run_round(rig.log)
        return rig

    rig = made(1)
    source = StatelogSource(rig.options)
    reader: Any = source.reader(source.schema())
    parts = reader.partitions()
    Log.delete(log_name, Where({"bootstrap.servers": rig.bootstrap}, str(rig.root)))
    made(2)

    def read() -> None:
        with pytest.raises(IdentityChanged, match="topics that the log had before"):
            _ = [list(reader.read(part)) for part in parts]

    assert in_fork(read) == 0


def test_a_stream_has_the_columns_of_the_new_log(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A stream has the columns of the new log, also in a worker that knows the old one's."""
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    rig.log.close()
    cached_log(log_address(rig.options)).value_schemas.newest()
    Log.delete(log_name, Where({"bootstrap.servers": rig.bootstrap}, str(rig.root)))
    SparkLog.create(log_name, broker.bootstrap, tmp_path, key_type="string", value_schema=None).log.close()
    columns = StatelogSource({**rig.options, "startingPosition": "latest"}).schema()
    assert [columns[name].dataType.simpleString() for name in ("key", "value")] == ["string", "binary"]
