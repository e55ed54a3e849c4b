"""Windowed aggregation: readings of sensors by the minute, in a log while the minutes are still counting.

    statelog dev start                     # a Kafka on 127.0.0.1:9092
    python -m examples.spark.windows       # in the checkout; takes the address of another Kafka

A query in update mode emits every window that a micro-batch changed, and `upsert` puts these to the log, exactly once.
So the log has the current value of every window, even before the watermark closes it, and a follower sees a minute
grow. A window has a key of its own, made of sensor and minute.
"""

import json
import random
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody who writes Spark jobs gives it

from examples.spark.place import Example, Place, main
from statelog.spark import upsert

__all__ = ["EXAMPLE", "keep_windows"]

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
READING = "sensor string, at timestamp, celsius bigint"
VALUE = json.dumps(
    {
        "type": "record",
        "name": "Minute",
        "fields": [
            {"name": "sensor", "type": "string"},
            {"name": "begins", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "readings", "type": "long"},
            {"name": "highest", "type": "long"},
        ],
    }
)
Reading = Mapping[str, Any]


def minutes(readings: DataFrame) -> DataFrame:
    """Return readings as rows for the log. The state of a minute is dropped when readings are ten minutes past it."""
    by_minute = readings.withWatermark("at", "10 minutes").groupBy("sensor", F.window("at", "1 minute").alias("minute"))
    counted = by_minute.agg(F.count("*").alias("readings"), F.max("celsius").alias("highest"))
    begins = F.col("minute.start")
    key = F.concat_ws(" ", "sensor", F.date_format(begins, "HH:mm"))
    return counted.select(key.alias("key"), "sensor", begins.alias("begins"), "readings", "highest")


def keep_windows(spark: SparkSession, place: Place) -> bool:
    """Aggregate all readings, and compare the log with a plain loop over them."""
    batches = readings(random.Random(6))
    # Each window comes once in a batch, because it is a group of the aggregation: any task may write its row.
    write = upsert(place.log, place.where, writer="minutes", unique_keys=True)
    changed = minutes(place.stream(spark, batches, READING))
    place.run_to_the_end(changed.writeStream.outputMode("update").foreachBatch(write))
    kept = place.state()
    print(f"{sum(len(batch) for batch in batches)} readings, {len(kept)} minutes of sensors")
    return kept == counted_plainly(reading for batch in batches for reading in batch)


def readings(chance: random.Random) -> list[list[Reading]]:
    """Return batches of readings, up to three minutes late, so that a minute grows over several batches."""
    batches: list[list[Reading]] = []
    for number in range(4):
        late = [timedelta(minutes=2 * number, seconds=chance.randrange(-180, 120)) for _ in range(100)]
        batches.append(
            [
                {"sensor": chance.choice("abc"), "at": (START + at).isoformat(), "celsius": chance.randrange(15, 40)}
                for at in late
            ]
        )
    return batches


def counted_plainly(all_readings: Iterable[Reading]) -> dict[str, dict[str, Any]]:
    """Return the windows by a plain loop."""
    windows: dict[str, dict[str, Any]] = {}
    for reading in all_readings:
        begins = datetime.fromisoformat(reading["at"]).replace(second=0)
        none: dict[str, Any] = {"sensor": reading["sensor"], "begins": begins, "readings": 0, "highest": 0}
        window = windows.setdefault(f"{reading['sensor']} {begins:%H:%M}", none)
        window["readings"] += 1
        window["highest"] = max(window["highest"], reading["celsius"])
    return windows


EXAMPLE = Example(name="minutes", key_type="string", value_schema=VALUE, program=keep_windows)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
