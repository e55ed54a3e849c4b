"""A program with Spark's own Kafka connector and statelog in one session; it prints its results as JSON.

A part that takes a JSON object: `options` of the log, `jars` of the connector, `topic` with the records, `directory`.
Once the log is written it takes `schema_hex` of its changes, and `offsets` and `listed`, which say what of its topic
counts.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from statelog.schemas.changes.chunk import VerifiedChunks, decode_batches, decode_head
from tests.support.spark.session import open_session

__all__ = ["main"]

_CHANGES = "partition int, offset long, row int, op int, key binary, value binary"


def main(text: str) -> None:
    """Do as the text says."""
    given = json.loads(text)
    spark = open_session({"spark.jars": ",".join(given["jars"])})
    if "offsets" in given:
        sys.stdout.write(f"RESULT {json.dumps(_read_topic(spark, given))}\n")
    else:
        _write_topic(spark, given)
    spark.stop()


def _write_topic(spark: SparkSession, given: dict[str, Any]) -> None:
    """Write a topic's records into the log, by Spark's Kafka source and our sink; their offsets are the sequence."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["options"]["kafka.bootstrap.servers"])
        .option("subscribe", given["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    start = records.select("key", "value", "offset").coalesce(1).writeStream.format("statelog")
    start = start.options(**given["options"], writerId="from-kafka", sequenceBy="offset", nullDeletes="true")
    checkpoint = Path(given["directory"], "checkpoint")
    query = start.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()


def _read_topic(spark: SparkSession, given: dict[str, Any]) -> list[list[object]]:
    """Return the committed changes of the log's own topic, by Spark's Kafka source and our decoding of chunks."""
    topic = given["options"]["log"]
    starts = {topic: {partition: start for partition, (start, _) in given["offsets"].items()}}
    ends = {topic: {partition: end for partition, (_, end) in given["offsets"].items()}}
    chunks = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", given["options"]["kafka.bootstrap.servers"])
        .option("assign", json.dumps({topic: sorted(int(partition) for partition in given["offsets"])}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "false")
        .load()
        .select("partition", "offset", "value")
    )
    listed = {int(partition): frozenset(offsets) for partition, offsets in given["listed"].items()}
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(given["schema_hex"])))

    def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for record in batch.to_pylist():
                if record["offset"] in listed.get(record["partition"], ()):
                    yield _changes(record, schema)

    rows = chunks.mapInArrow(decoded, _CHANGES).orderBy("partition", "offset", "row").collect()
    return [[row.op, bytes(row.key).hex(), None if row.value is None else bytes(row.value).hex()] for row in rows]


def _changes(record: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    found = decode_head(record["value"])
    assert found is not None
    head, at = found
    changes = decode_batches(VerifiedChunks.of(record["value"], head, at), schema)
    count = changes.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record["partition"]] * count, pa.int32()),
            pa.array([record["offset"]] * count, pa.int64()),
            pa.array(range(count), pa.int32()),
            changes.column("op").cast(pa.int32()),
            changes.column("key"),
            changes.column("value"),
        ],
        names=["partition", "offset", "row", "op", "key", "value"],
    )
