"""`register`: makes `format("statelog")` known to one session, instead of leaving it to Spark to find it.

What Spark finds by itself it runs in the Python of the driver's environment, on executors, too. What is registered runs
in the Python of the session's other workers, and needs no package installed where Spark looks.
"""

from pyspark.sql import SparkSession

from pyspark_statelog import DefaultSource
from statelog.spark.version import require_spark

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("statelog")` known to this session. On a cluster, call it first. Raises ConfigError.

        >>> register(spark)

    Planning and tasks then run in the Python that `PYSPARK_PYTHON`, or the setting `spark.pyspark.python`, names, as
    functions in Python do. Idempotent; also for Spark Connect.
    """
    require_spark()
    spark.dataSource.register(DefaultSource)
