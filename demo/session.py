"""The Spark session of the demo's two queries: small, and on this machine alone."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Both sessions end before the optimising compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Spark writes times in Parquet as most readers no longer know them, unless it is told.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "2",
}


def spark_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session of its own with two threads; `settings` come on top of those of the demo."""
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark
