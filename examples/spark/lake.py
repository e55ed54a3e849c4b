"""A lake table: export a log that jobs write to a Delta table.

    statelog dev start                     # a Kafka on 127.0.0.1:9092
    python -m examples.spark.lake          # in the checkout; takes the address of another Kafka

A daily job puts the stock counts to a log. After it, `export` brings a Delta table to the log's newest state: the first
time with all rows, then with the newest change of each key behind the table's position. Rows and position change in one
commit of the table, so an export that dies can be repeated. It needs no Spark session, and can run in any scheduler; it
needs `statelog[delta]`.
"""

import json
import random
import sys
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody who writes Spark jobs gives it

from examples.spark.place import Example, Place, main
from statelog.lake import Exported, export

__all__ = ["EXAMPLE", "keep_table"]

COUNT = "article string, pieces bigint"
VALUE = json.dumps({"type": "record", "name": "Stock", "fields": [{"name": "pieces", "type": "long"}]})
Count = Mapping[str, Any]


def keep_table(spark: SparkSession, place: Place) -> bool:
    """Write a day's counts and export, twice; compare the table with Spark's view of the log, and with a plain loop."""
    days = [counted(random.Random(8), pieces=9, articles=500), counted(random.Random(9), pieces=3, articles=100)]
    table = str(place.directory / "stock")
    for number, day in enumerate(days):
        write_day(spark, place, day, number)
        exported = bring_up(place, table)
        print(f"day {number}: {exported.inserted} inserted, {exported.updated} updated, {exported.deleted} deleted")
    opened: Any = DeltaTable(table)  # Its types know pyarrow's only in part.
    found = {row["key"]: row["pieces"] for row in opened.to_pyarrow_table().to_pylist()}
    state = spark.read.format("statelog").options(**place.options).load()
    counts = {count["article"]: count["pieces"] for day in days for count in day}
    in_stock = {article: pieces for article, pieces in counts.items() if pieces}
    return found == in_stock == {row.key: row.pieces for row in state.collect()}


def write_day(spark: SparkSession, place: Place, day: list[Count], number: int) -> None:
    """Put the articles in stock, and delete the others: once for each day, however often this runs."""
    rows = spark.createDataFrame([(count["article"], count["pieces"]) for count in day], COUNT)
    op = F.when(F.col("pieces") == 0, "delete").otherwise("put")
    options = {**place.options, "writerId": "stock", "checkpointId": str(number + 1), "uniqueKeys": "true"}
    changes = rows.select(F.col("article").alias("key"), op.alias("op"), "pieces")
    changes.write.format("statelog").mode("append").options(**options).save()


def bring_up(place: Place, table: str) -> Exported:
    """Bring the table to the newest state of the log."""
    with place.open() as log:
        return export(log, table)


def counted(chance: random.Random, *, pieces: int, articles: int) -> list[Count]:
    """Return articles with the number of remaining pieces."""
    return [{"article": f"article {number}", "pieces": chance.randrange(pieces)} for number in range(articles)]


EXAMPLE = Example(name="stock", key_type="string", value_schema=VALUE, program=keep_table)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
