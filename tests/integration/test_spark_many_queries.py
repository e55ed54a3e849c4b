"""Many queries in one session, and stateful functions of the user's own: slow, because Spark is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from statelog.spark.columns import key_group_column
from tests.support.services.broker import Broker
from tests.support.spark.rig import Row as Change
from tests.support.spark.rig import SparkLog, fold_rows, read_stream, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(900)]

QUERIES = 20
BATCHES: list[list[Change]] = [[(key, number) for key in range(64)] for number in range(3)]


def test_twenty_queries_of_a_session_open_once_each(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """Twenty queries of a session, two for each of ten logs with a share each, open once each, by any workers."""
    write_batches(tmp_path / "input", BATCHES)
    rigs = [SparkLog.create(f"{log_name}-{one}", broker.bootstrap, tmp_path / str(one)) for one in range(QUERIES // 2)]
    queries: list[StreamingQuery] = []
    for number in range(QUERIES):
        rig, half = rigs[number // 2], number % 2
        group = key_group_column("key", "long", 16)
        rows = read_stream(spark, tmp_path / "input").where(group < 8 if half == 0 else group >= 8)
        start = rows.writeStream.format("statelog").options(
            **rig.options, writerId=f"job-{half}", partitions=f"{half}/2"
        )
        queries.append(start.option("checkpointLocation", str(tmp_path / f"checkpoint-{number}")).start())
    try:
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert [rig.opens() for rig in rigs] == [2] * len(rigs)
    assert [rig.numbers() for rig in rigs] == [fold_rows(BATCHES)] * len(rigs)


class Summing(StatefulProcessor):
    """A processor that sums `n` for every key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Create one number for each key."""
        self._sum: Any = handle.getValueState("sum", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803  # Spark's names
        """Add the batch's rows to the known sum, and emit the new one."""
        known = self._sum.get()
        total = (known[0] if known else 0) + sum(row["n"] for row in rows)
        self._sum.update((total,))
        yield Row(key=key[0], n=total)

    def close(self) -> None:
        """Release nothing."""


def test_what_transform_with_state_emits_is_in_the_log(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """The state of a user's processor in Spark is put to the log in append mode, batch by batch."""
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    write_batches(tmp_path / "input", BATCHES)
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        sums = (
            read_stream(spark, tmp_path / "input")
            .groupBy("key")
            .transformWithState(Summing(), "key long, n long", "append", "None")
        )
        start = sums.writeStream.format("statelog").options(**rig.options, writerId="sums", uniqueKeys="true")
        query = start.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert rig.numbers() == {key: sum(range(len(BATCHES))) for key in range(64)}
    assert rig.opens() == 1
