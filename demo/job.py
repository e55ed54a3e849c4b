"""The Spark job, in a process of its own: `python -m demo.job PLACE`. A user's program would be no longer.

A stateful aggregation per aircraft in update mode, and `upsert` for every micro-batch. One slice of the input is one
micro-batch. A restart continues from the checkpoint; a batch that the log already has is skipped.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody who writes Spark jobs gives it

from demo.flights import SPARK_COLUMNS
from demo.place import WRITER, Place
from demo.session import spark_session
from statelog.spark.sink import upsert

__all__ = ["changed_aircraft", "main"]

# Only for this demo: workers that outlive the driver for a while, as on other machines of a cluster.
_APART = {"spark.python.daemon.module": "demo.apart"}


def changed_aircraft(flights: DataFrame) -> DataFrame:
    """Return the new state of every aircraft of a micro-batch, for the log: key, op, and the fields of the value."""
    flown = ~F.col("cancelled")
    minutes_late = F.greatest(F.col("minutes_late"), F.lit(0))
    latest = F.max_by(F.struct("flight", "origin", "destination", "scheduled", "cancelled"), "number")
    aircraft = flights.groupBy(F.col("tail").alias("key")).agg(
        F.count_if(flown).alias("flights"),
        F.coalesce(F.sum(minutes_late), F.lit(0)).alias("minutes_late"),
        F.count_if("cancelled").alias("cancellations"),
        latest.alias("latest"),
    )
    return aircraft.select(
        "key",
        F.when(F.col("latest.cancelled"), "delete").otherwise("put").alias("op"),
        "flights",
        "minutes_late",
        "cancellations",
        F.col("latest").dropFields("cancelled").alias("last_flight"),
    )


def main(place: Place) -> None:
    """Run the job until the end of the input."""
    spark = spark_session("statelog-demo", _APART)
    flights = spark.readStream.schema(SPARK_COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(place.input))
    to_log = upsert(place.log, place.where, writer=WRITER, unique_keys=True)
    query = (
        changed_aircraft(flights)
        .writeStream.outputMode("update")
        .foreachBatch(to_log)
        .option("checkpointLocation", str(place.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Place.from_json(sys.argv[1]))
