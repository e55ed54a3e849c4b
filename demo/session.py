"""The small, local Spark session of the demo's two queries."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Both sessions end before the optimising compiler pays off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Spark's default format of times in Parquet is unknown to most readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "2",
}


def spark_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Make a session with two threads; `settings` override those of the demo."""
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark
