"""Options of the Spark source and sinks are checked, typed and masked, and a read is cut into tasks."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkAttributeError
from pyspark.sql.types import BinaryType, StructField, StructType

from statelog.errors import ConfigError, InvalidName, NotFound
from statelog.log import Where
from statelog.reading.plan import AtCheckpoint, AtPosition, AtTime
from statelog.spark.clients import ProcessCache
from statelog.spark.columns import repartition_by_key_group
from statelog.spark.data_source import require_spark
from statelog.spark.engine import spark_engine
from statelog.spark.option_texts import address_options, log_address
from statelog.spark.options import state_options, write_options
from statelog.spark.parts import slices
from statelog.spark.reported import error_of
from statelog.spark.sink import BatchWriter, StreamWriter, upsert

WHERE = {"log": "flights", "root": "s3://bucket/logs", "kafka.bootstrap.servers": "b:9092"}


def test_what_upsert_sets_is_no_option_to_offer() -> None:
    """Options that `upsert` sets are accepted but not listed as known.

    The hint translates options of Spark's Kafka source.
    """
    assert write_options({**WHERE, "writerId": "w", "batchId": "0", "queryId": "q"}, streaming=False).query_id == "q"
    with pytest.raises(ConfigError, match="allowGaps") as caught:
        write_options({**WHERE, "writerId": "w", "batch": "0"}, streaming=False)
    assert not {"batchId", "runId", "queryId"} & set(caught.value.hint.replace(",", "").split())
    with pytest.raises(ConfigError, match="startingOffsets is startingPosition"):
        state_options({**WHERE, "startingOffsets": "earliest"})


def test_upsert_refuses_where_nobody_names_the_query() -> None:
    """Without a query id, as in a function of Spark Connect, `upsert` is refused before anything is opened."""

    class Session:
        """A session of Spark Connect."""

        @property
        def sparkContext(self) -> object:  # noqa: N802  # Spark's name
            """Raise, since there is no JVM."""
            raise PySparkAttributeError("no JVM")

    class Batch:
        """A DataFrame that cannot even be written."""

        sparkSession = Session()  # noqa: N815  # Spark's name

    batch: Any = Batch()
    write = upsert("flights", Where({"bootstrap.servers": "b:1"}, "s3://b"), writer="w")
    with pytest.raises(ConfigError, match="query_id of upsert") as caught:
        pickle.loads(pickle.dumps(write))(batch, 0)
    assert type(error_of(RuntimeError("\n".join(caught.value.__notes__)))) is ConfigError, (
        "the driver gets the type of the error"
    )


def test_options_are_typed() -> None:
    """Every option arrives as a typed value, whatever the case of its name."""
    read = state_options({**WHERE, "KEYGROUPS": "0:3, 7", "columns": "key,n", "minPartitions": "3", "atposition": "12"})
    assert (read.key_groups, read.columns, read.min_partitions) == ((0, 1, 2, 7), ("key", "n"), 3)
    assert read.at == AtPosition(12)
    assert state_options({**WHERE, "atWriter": "w", "atCheckpoint": "4"}).at == AtCheckpoint("w", 4)
    assert state_options({**WHERE, "atTime": "2026-01-31T12:00:00Z"}).at == AtTime(1769860800000)
    assert state_options({**WHERE, "atTime": "2038-10-07T19:24:20.990Z"}).at == AtTime(2170092260990), (
        "exact to the millisecond"
    )
    write = write_options({**WHERE, "writerId": "w", "uniqueKeys": "TRUE", "checkpointlocation": "/c"}, streaming=True)
    assert (write.writer, write.unique_keys, write.is_stream) == ("w", True, True)
    assert pickle.loads(pickle.dumps(write)) == write
    assert hash(write.where) == hash(read.where), "the same connection is one client"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"log": ""}, "option log"),
        ({"root": ""}, "option root"),
        ({"kafka.bootstrap.servers": ""}, "bootstrap.servers"),
        ({"kafka.transactional.id": "t"}, "transactional.id"),
        ({"keygroups": "1:x"}, "keyGroups"),
        ({"keygroups": ""}, "keyGroups is empty"),
        ({"keygroups": "4:4"}, "empty range"),
        ({"columns": " , "}, "columns is empty"),
        ({"path": "other"}, "different logs"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"includeKeyGroup": "1"}, "includeKeyGroup"),
        ({"atWriter": "w"}, "atWriter and atCheckpoint go together"),
        ({"atPosition": "1", "atWriter": "w", "atCheckpoint": "1"}, "atPosition and atWriter exclude each other"),
        ({"writerId": "w"}, "unknown option writerid for a read"),
        ({"startingOffsets": "latest", "subscribe": "t"}, "startingoffsets, subscribe"),
    ],
)
def test_wrong_read_options_are_named(changed: dict[str, str], named: str) -> None:
    """A missing, unknown, malformed or contradicting option is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        state_options({**WHERE, **changed})
    assert named in str(caught.value)


def test_wrong_write_options_are_named() -> None:
    """Contradicting options of a write are refused: a writer is required, and a stream numbers its own batches.

    A batch has one name, and not checkpoint 0, which precedes a writer's first: the batch would be taken for a replay
    and lost.
    """
    for streaming, changed, named in (
        (True, {}, "writerId is missing"),
        (True, {"writerId": "w", "checkpointId": "1"}, "for batch writes"),
        (False, {"writerId": "w", "checkpointId": "1", "batchId": "1"}, "exclude each other"),
        (False, {"writerId": "w", "keyGroups": "1"}, "unknown option keygroups for a write"),
        (False, {"writerId": "w", "checkpointLocation": "/c"}, "unknown option checkpointlocation for a write"),
        (True, {"writerId": "w", "takeOver": "yes"}, "takeOver is 'yes'"),
        (False, {"writerId": "w", "checkpointId": "0"}, "checkpointId is '0'"),
    ):
        with pytest.raises(ConfigError, match=named):
            write_options({**WHERE, **changed}, streaming=streaming)
    with pytest.raises(InvalidName):
        write_options({**WHERE, "writerId": "a b"}, streaming=True)


_PLACE = Where({"bootstrap.servers": "b:9092"}, "s3://bucket/logs")
_REFUSED: list[tuple[Callable[[Any], object], object, str]] = [
    (lambda where: upsert("flights", where, writer="w"), "b:9092", "where is of type str, and not Where"),
    (
        lambda where: spark_engine(where, "flights", where, most_tasks=1),
        "b:9092",
        "where is of type str, and not Where",
    ),
    (lambda given: upsert("flights", _PLACE, writer="w", partitions=given), 3, "partitions is of type int"),
    (
        lambda given: upsert("flights", _PLACE, writer="w", partitions=given),
        ["0"],
        "partitions has an item that is no whole n",
    ),
    (lambda log: repartition_by_key_group(log, log), "flights", "log is of type str, and not Log or Descriptor"),
]


@pytest.mark.parametrize(("call", "argument", "told"), _REFUSED)
def test_the_argument_of_another_kind_is_named(call: Callable[[Any], object], argument: object, told: str) -> None:
    """An argument of a wrong type is a typed error, and no TypeError from the inside."""
    with pytest.raises(ConfigError, match=told) as refused:
        call(argument)
    assert refused.value.hint


def test_secrets_stay_out_of_sight() -> None:
    """The repr of options masks passwords, storage secrets and credentials in URLs."""
    secret = {"kafka.sasl.password": "hidden", "storage.secret": "hidden", "root": "s3://user:hidden@bucket/x"}
    assert "hidden" not in repr(write_options({**WHERE, **secret, "writerId": "w"}, streaming=False))


def test_storage_options_keep_their_types() -> None:
    """Mappings, lists and booleans are read as JSON. Text and numbers stay text, and broken JSON is refused."""
    given_options = {"endpoint_url": "http://h:1", "client_kwargs": {"a": [1]}, "anon": True, "key": "0123"}
    kafka = {"bootstrap.servers": "127.0.0.1:9092"}
    options = address_options("log", Where(kafka, "/tmp", storage_options=given_options))
    assert log_address(options).where.storage_options == given_options
    with pytest.raises(ConfigError, match=r"storage\.client_kwargs"):
        log_address({**WHERE, "storage.client_kwargs": "{"})
    with pytest.raises(ConfigError, match="an option of type object cannot be written as text"):
        address_options("log", Where(kafka, "/tmp", storage_options={"key": object()}))


@given(groups=st.integers(1, 200), count=st.integers(1, 300))
@settings(deadline=None)
def test_slices_are_contiguous_and_complete(groups: int, count: int) -> None:
    """Slices are non-empty, in order, and together all key groups, for any number of tasks."""
    found = slices(range(groups), count)
    assert [group for part in found for group in part] == list(range(groups))
    assert all(found)
    assert len(found) == min(groups, count)


def test_an_old_spark_is_refused() -> None:
    """A Spark below 4.2 is refused with both versions. Development versions of newer ones pass."""
    for good in ("4.2.0", "4.10.1", "5.0.0.dev1"):
        require_spark(good)
    for old in ("4.1.4", "3.5.1"):
        with pytest.raises(ConfigError, match=rf"4\.2 or newer, not {old}"):
            require_spark(old)


class _Client:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_the_cache_closes_what_it_lets_go() -> None:
    """Clients that are replaced, dropped, idle or cleared are closed. Clients in use stay, however many."""
    now_s = [0.0]
    cache: ProcessCache[int, _Client] = ProcessCache(idle_s=10.0, clock=lambda: now_s[0])
    clients = [cache.get_or_make(number, _Client) for number in range(20)]
    now_s[0] = 8.0
    assert cache.get_or_make(0, _Client) is clients[0]
    assert not any(client.closed for client in clients)
    now_s[0] = 16.0
    cache.put(8, _Client())
    assert cache.get(1) is None
    assert [client.closed for client in clients] == [False, *[True] * 19]
    replaced = cache.get(8)
    cache.put(8, _Client())
    assert replaced is not None
    assert replaced.closed
    cache.drop(0)
    cache.drop(0)
    cache.clear()
    assert all(client.closed for client in clients)
    assert cache.get(8) is None


@pytest.mark.parametrize("sink", [StreamWriter, BatchWriter])
def test_making_a_writer_does_no_io(tmp_path: Path, sink: type[StreamWriter | BatchWriter]) -> None:
    """Making a writer does no I/O, since Spark makes two for every batch. Only pickling, in planning, opens the log."""
    options = {**WHERE, "root": str(tmp_path), "kafka.bootstrap.servers": "127.0.0.1:1", "writerId": "job"}
    columns = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    writer = sink(options, columns, overwrite=False)
    with pytest.raises(pickle.PicklingError, match="no log flights") as caught:
        pickle.dumps(writer)
    assert isinstance(error_of(caught.value), NotFound)


def test_an_old_spark_is_told_and_no_import_fails(tmp_path: Path) -> None:
    """With Spark 4.0, which lacks base classes, every request to the source is answered with the required version."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import pyspark, pyspark.sql.datasource as d\n"
        "pyspark.__version__ = '4.0.1'; del d.DataSourceStreamArrowWriter\n"
        "sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "import pyspark_statelog as p\n"
        "try: p.DefaultSource(options={})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.partition(". ")[0] == "ConfigError statelog needs pyspark 4.2 or newer, not 4.0.1"


def test_a_worker_that_writes_imports_no_other_room() -> None:
    """A worker that writes does not import recoveries and rounds, since every worker pays for its imports."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import statelog.spark.sink;"
        "print([name for name in sys.modules if name.startswith(('statelog.recovery', 'statelog.materializer'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_spark_finds_nothing_to_break(tmp_path: Path) -> None:
    """Importing Spark's entry point imports nothing of statelog, so our faults do not break other data sources."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import pyspark_statelog as p;"
        "assert p.DefaultSource.name() == 'statelog';"
        "assert not [name for name in sys.modules if name.startswith('statelog')]"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_a_fork_leaves_its_parents_clients_alone() -> None:
    """In a forked child the cache is empty, and neither using nor clearing it closes the parent's clients."""
    cache: ProcessCache[int, _Client] = ProcessCache()
    client = cache.put(1, _Client())
    child = os.fork()
    if child == 0:
        found = cache.get(1)
        cache.clear()
        os._exit(0 if found is None and not client.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get(1) is client
