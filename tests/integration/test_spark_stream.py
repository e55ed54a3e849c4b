"""The streaming source: committed changes as micro-batches, into Spark's own sinks and into ours."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statelog.errors import IncompatibleSchema, NotFound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.reading.claims import list_subscriptions
from statelog.schemas.snapshot.claims import newest_files
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.spark import error_of
from tests.support.documents import DOCS
from tests.support.samples.folds import apply_all
from tests.support.services.broker import Broker
from tests.support.spark.rig import AVSC, SparkLog, write_numbers

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_TIMEOUT_S = 120
_NO_MORE: Mapping[str, str] = {}
_READER = {"startingPosition": "earliest", "readerId": "lake"}
_WITH_MORE = AVSC.replace('"fields": [', '"fields": [{"name": "more", "type": ["null", "string"], "default": null}, ')


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> SparkLog:
    """Return a small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def _stream(spark: SparkSession, rig: SparkLog, **options: str) -> DataFrame:
    return spark.readStream.format("statelog").options(**rig.options, **options).load()


def _to_parquet(df: DataFrame, directory: Path) -> StreamingQuery:
    """Run a query over all present commits into Spark's own file sink; return it."""
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(directory / "rows"))
    assert query.awaitTermination(_TIMEOUT_S)
    return query


def _commit(writer: Writer, numbers: Mapping[int, int | None], more: Mapping[str, str] = _NO_MORE) -> int:
    write_numbers(writer, numbers, more)
    return writer.commit().offset + 1


def _round(rig: SparkLog, scratch: Path) -> None:
    run_round(rig.log, MaterializerSettings(scratch=scratch, retention=RetentionPolicy(keep=2, min_age_s=0.0)))


def _rows(spark: SparkSession, directory: Path) -> list[tuple[Any, ...]]:
    found = spark.read.parquet(str(directory / "rows"))
    rows = [(row.position, row.key, row.op, row.value.n if row.value else None) for row in found.collect()]
    return sorted(rows, key=str)


def test_a_query_reads_every_commit_once_from_run_to_run(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A query reads every commit once from run to run: AvailableNow twice over one checkpoint, in limited
    micro-batches.

    It writes every change with its commit, deletes too, into Parquet and into a statelog sink. Between the runs rounds
    hold the query's position, and truncate behind it. The values get another field, which the second run has.
    """
    copy = SparkLog.create(f"{rig.log.name}-copy", rig.bootstrap, tmp_path / "copy")
    expected: list[tuple[Any, ...]] = []
    for life in range(2):
        if life:
            rig.log.evolve_value_schema(_WITH_MORE)
        with Writer(rig.log, "w") as writer:
            for number in range(4):
                changes = {key: None if key == number else life * 100 + key for key in range(number, 12, 2)}
                position = _commit(writer, changes, {"more": "new"} if life else {})
                expected += [(position, k, "delete" if n is None else "put", n) for k, n in changes.items()]
                if life:
                    _round(rig, tmp_path)
        df = _stream(spark, rig, maxChangesPerTrigger="9", **_READER)
        assert df.columns == ["key", "op", "value", "key_group", "writer", "checkpoint", "position", "timestamp"]
        assert ("more" in df.select("value.*").columns) is bool(life)
        query = _to_parquet(df, tmp_path)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        assert len(progress) >= 2, "limits cut micro-batches"
        assert json.loads(progress[-1]["sources"][0]["latestOffset"])["behindRecords"] == 0
        rows = _stream(spark, rig, startingPosition="earliest", readerId="copy", maxChangesPerTrigger="1")
        _to_log(rows.select("key", "op", "value.n", "value.note"), copy, tmp_path / "copied")
        assert copy.numbers() == rig.numbers()
    with Writer(rig.log, "w") as writer:
        _commit(writer, {99: 1})
    _round(rig, tmp_path)
    assert _rows(spark, tmp_path) == sorted(expected, key=str)
    held = newest_files(list_subscriptions(rig.log.store).files)["lake"].subscription
    assert held.is_taken_up
    assert 0 < rig.log.kafka.offsets(rig.log.ledger_topic, [0])[0].start <= held.position


def test_values_get_a_field_while_a_query_runs(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A query goes on while nothing is written with a new schema; the first commit with it ends the query, by type.

    The commit leaves nothing in the sink. Started again, the query has every change once, and the new field.
    """

    def start() -> StreamingQuery:
        writer = _stream(spark, rig, **_READER).writeStream.format("parquet")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "rows"))

    with Writer(rig.log, "w") as writer:
        first = _commit(writer, {1: 1, 2: 2})
        query = start()
        query.processAllAvailable()
        rig.log.evolve_value_schema(_WITH_MORE)
        second = _commit(writer, {1: None, 3: 3})
        query.processAllAvailable()
        expected = [(first, 1, "put", 1), (first, 2, "put", 2), (second, 1, "delete", None), (second, 3, "put", 3)]
        assert _rows(spark, tmp_path) == sorted(expected, key=str)
    with Writer(rig.log, "w") as writer:
        third = _commit(writer, {2: 20, 4: None}, {"more": "new"})
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(_TIMEOUT_S)
    error = error_of(caught.value)
    assert isinstance(error, IncompatibleSchema)
    assert "start the query again" in str(error)
    assert _rows(spark, tmp_path) == sorted(expected, key=str)

    query = start()
    query.processAllAvailable()
    query.stop()
    expected += [(third, 2, "put", 20), (third, 4, "delete", None)]
    assert _rows(spark, tmp_path) == sorted(expected, key=str)
    merged = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "rows"))
    assert [(row.key, row.value.more) for row in merged.where("value.more IS NOT NULL").collect()] == [(2, "new")]


def _to_log(rows: DataFrame, target: SparkLog, checkpoint: Path) -> None:
    sink = rows.repartition(1).writeStream.format("statelog").options(**target.options, writerId="copy")
    sink = sink.option("uniqueKeys", "true").option("checkpointLocation", str(checkpoint))
    assert sink.trigger(availableNow=True).start().awaitTermination(_TIMEOUT_S)


def test_the_state_first_then_changes_while_others_write(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A query that starts at a snapshot while a writer commits and rounds run folds to the log's state."""
    with Writer(rig.log, "w") as writer:
        _commit(writer, {key: key for key in range(50)})
        _round(rig, tmp_path)

        seen: list[tuple[int, int, str, int | None]] = []

        def collect(df: DataFrame, _batch: int) -> None:
            seen.extend((row.position, row.key, row.op, row.value.n if row.value else None) for row in df.collect())

        df = _stream(spark, rig, startingPosition="snapshot", readerId="live")
        query = df.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "live")).start()
        try:
            for number in range(1, 40):
                _commit(writer, {key: None if (key + number) % 5 == 0 else number for key in range(number % 7, 60, 7)})
            _round(rig, tmp_path)
            query.processAllAvailable()
        finally:
            query.stop()
    assert len({(position, key) for position, key, _, _ in seen}) == len(seen), "nothing came twice"
    state: dict[int, int] = {}
    for _, key, op, n in sorted(seen, key=lambda row: row[:2]):
        assert (op == "put") == (n is not None)
        apply_all(state, [(key, n)])
    assert state == rig.numbers()


def test_a_place_that_is_gone_is_told_or_begun_anew(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A stopped query whose position is truncated, without a reader or a lease, gets a typed error.

    Then, on request with the same checkpoint, it gets a reset marker and the state.
    """
    options = {"startingPosition": "earliest", "leaseSeconds": "0"}
    with Writer(rig.log, "w") as writer:
        _commit(writer, {1: 1, 2: 2})
        _to_parquet(_stream(spark, rig, **options), tmp_path)
        for number in range(4):
            _commit(writer, {1: 10 + number, 2: None})
            _round(rig, tmp_path)
    with pytest.raises(StreamingQueryException) as caught:
        _to_parquet(_stream(spark, rig, **options), tmp_path)
    error = error_of(caught.value)
    assert isinstance(error, NotFound)
    assert "startingPosition=snapshot" in str(error)
    _to_parquet(_stream(spark, rig, **options, onTruncation="snapshot"), tmp_path)
    rows = [row[1:] for row in _rows(spark, tmp_path)]
    assert sorted(rows, key=str) == [(1, "put", 1), (1, "put", 13), (2, "put", 2), (None, "reset", None)]


def test_the_lake_guides_merge_keeps_a_table_equal(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """The guide's program, as printed, gives MERGE rows that fold to the log's state, from a snapshot on.

    A key comes many times in a commit, and each micro-batch twice. Spark accepts the MERGE itself.
    """
    text = (DOCS / "guide" / "lake.md").read_text("utf-8").partition("<!-- program: merge -->")[2]
    program: dict[str, Any] = {}
    exec(text.partition("```text\n")[2].partition("```")[0], program)
    with pytest.raises(AnalysisException, match=r"lake.*planes"):
        spark.sql(program["MERGE"])
    table: dict[int, int] = {}

    def merge(batch: DataFrame, _batch: int) -> None:
        for _ in range(2):
            rows = program["newest"](batch).collect()
            assert len({row.key for row in rows}) == len(rows)
            for row in rows:
                table.pop(row.key, None) if row.op == "delete" else table.update({row.key: row.value.n})

    with Writer(rig.log, "w") as writer:
        _commit(writer, {key: key for key in range(30)})
        _round(rig, tmp_path)
        changes = _stream(spark, rig, startingPosition="snapshot", maxChangesPerTrigger="40")
        query = (
            changes.writeStream.foreachBatch(merge).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )
        try:
            for number in range(6):
                for again, key in product(range(3), range(number, 40, 3)):
                    is_gone = (key + again + number) % 4 == 0
                    writer.delete(key) if is_gone else writer.put(key, {"n": again + 10 * number, "note": None})
                writer.commit()
            query.processAllAvailable()
        finally:
            query.stop()
    assert table == rig.numbers()
