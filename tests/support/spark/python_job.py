"""A job for `spark-submit` on a cluster whose executors have another Python than the driver: it writes, and reads back.

spark-submit ... python_job.py OPTIONS      # a JSON object: the options of the log; prints the sum that it read
"""

import json
import sys

from pyspark.sql import SparkSession

__all__ = ["main"]


def main() -> None:
    """Write forty rows in two tasks, and print the sum of what the log holds."""
    options = json.loads(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from statelog.spark import register  # As a program does that was sent to a cluster with its own statelog.

    register(spark)
    rows = spark.range(0, 40, 1, 2).selectExpr("id AS key", "id * 2 AS n")
    rows.write.format("statelog").mode("append").options(**options, writerId="job", uniqueKeys="true").save()
    state = spark.read.format("statelog").options(**options, minPartitions="2").load()
    sys.stdout.write(f"sum={state.selectExpr('sum(n) AS n').collect()[0].n}\n")
    spark.stop()


if __name__ == "__main__":
    main()
