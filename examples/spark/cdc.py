"""Change data capture: mirror a database's table in a log, from a stream of its changes.

    statelog dev start                     # a Kafka on 127.0.0.1:9092
    python -m examples.spark.cdc           # in the checkout; takes the address of another Kafka

The changes have Debezium's form: the row before, the row after, and the position of the change in the database's own
log (`lsn`). A micro-batch has several changes of one row, some of them twice, and a shuffle keeps no order. So the rows
of a key group go to one task, and `sequenceBy` selects the last row of a key: the one with the greatest `lsn`.

This program reads the changes from files, because Spark's source for Kafka needs extra jars. With them, only the first
lines differ:

    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", ...).option("subscribe", "customers")
    changes = records.load().select(F.from_json(F.col("value").cast("string"), CHANGE).alias("c")).select("c.*")

Kafka keeps the changes of a row in order if Debezium's key is the table's. Then no batch has an older change of a row
than an earlier batch, and only the order within a batch has to be found.
"""

import json
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody who writes Spark jobs gives it

from examples.spark.place import Example, Place, main
from statelog.spark import repartition_by_key_group

__all__ = ["EXAMPLE", "keep_customers"]

CHANGE = (
    "op string, before struct<id: bigint, name: string, city: string>,"
    " after struct<id: bigint, name: string, city: string>, source struct<lsn: bigint>"
)
VALUE = json.dumps(
    {
        "type": "record",
        "name": "Customer",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "city", "type": "string"},
            {"name": "lsn", "type": "long"},
        ],
    }
)
Change = Mapping[str, Any]


def customers(changes: DataFrame) -> DataFrame:
    """Return changes as rows for the log: key, op, and the fields of the value, including `lsn`."""
    return changes.select(
        F.coalesce("after.id", "before.id").alias("key"),
        F.when(F.col("op") == "d", "delete").otherwise("put").alias("op"),
        "after.name",
        "after.city",
        "source.lsn",
    )


def keep_customers(spark: SparkSession, place: Place) -> bool:
    """Process all changes, and compare the log with the table that they come from."""
    batches, table = table_changes(random.Random(5))
    changes = place.stream(spark, batches, CHANGE)
    with place.open() as log:
        rows = repartition_by_key_group(customers(changes), log)
    options = {**place.options, "writerId": "customers", "sequenceBy": "lsn"}
    place.run_to_the_end(rows.writeStream.format("statelog").options(**options))
    kept = {key: {"id": key, "name": row["name"], "city": row["city"]} for key, row in place.state().items()}
    changed = sum(len(batch) for batch in batches)
    print(f"{changed} changes in {len(batches)} batches, {len(kept)} customers kept, {len(table)} in the table")
    return kept == table


def table_changes(chance: random.Random) -> tuple[list[list[Change]], dict[int, Change]]:
    """Return a table's changes in batches, each unordered and with repetitions; and its rows at the end."""
    table: dict[int, Change] = {}
    batches: list[list[Change]] = []
    for number in range(4):
        batch: list[Change] = []
        for lsn in range(number * 300, (number + 1) * 300):
            key = chance.randrange(80)
            before, after = table.pop(key, None), None
            if before is None or chance.random() < 0.8:
                after = table[key] = {
                    "id": key,
                    "name": f"customer {key}",
                    "city": chance.choice(["Oslo", "Rome", "Lima"]),
                }
            batch.append({"op": _op(before, after), "before": before, "after": after, "source": {"lsn": lsn}})
        batches.append(_shuffled(chance, batch))
    return batches, table


def _op(before: Change | None, after: Change | None) -> str:
    """Return Debezium's letter for a change: c, u or d."""
    return "d" if after is None else "c" if before is None else "u"


def _shuffled(chance: random.Random, batch: Iterable[Change]) -> list[Change]:
    """Repeat one change in ten, as a topic with at-least-once delivery does, and shuffle the batch."""
    twice = [change for change in batch for _ in range(2 if chance.random() < 0.1 else 1)]
    return chance.sample(twice, len(twice))


EXAMPLE = Example(name="customers", key_type="long", value_schema=VALUE, program=keep_customers)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
