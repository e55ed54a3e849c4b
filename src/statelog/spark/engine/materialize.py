"""`materialize`: one round of the materializer on a Spark session, and `spark_engine` for a daemon on one."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from statelog.errors import ConfigError
from statelog.materializer.engine import EngineMaker
from statelog.materializer.outcome import RoundOutcome
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.spark.engine.spark_engine import TASK_BYTES, SparkEngineMaker
from statelog.spark.options.address import address_options, log_address
from statelog.spark.version import require_spark
from statelog.storage import Log, Where

__all__ = ["materialize", "spark_engine"]


def materialize(
    spark: SparkSession,
    log: str,
    where: Where,
    *,
    settings: MaterializerSettings | None = None,
    most_tasks: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> RoundOutcome:
    """Roll the log up, once: the driver plans and puts the manifest, Spark tasks fold, merge and write.

    `most_tasks` are the tasks that a fold or a merge is cut into at most, None for as many as the session runs at once;
    none gets fewer bytes than `task_bytes`. Of `settings`, `scratch` is a directory of every worker.

    Raises as `statelog.materializer.run_round`, ConfigError, InvalidName.

        >>> materialize(spark, log.name, where).number
        1
    """
    require_spark()
    make_engine = _maker(spark, log, where, most_tasks, task_bytes)
    with Log.open(log, where) as opened:
        return run_round(opened, settings, make_engine=make_engine)


def spark_engine(
    spark: SparkSession,
    log: str,
    where: Where,
    *,
    most_tasks: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> EngineMaker:
    """What a `Materializer` on this log takes as `make_engine`, so that its rounds run on Spark. See `materialize`.

    >>> from statelog.materializer import run_round
    >>> run_round(log, make_engine=spark_engine(spark, log.name, where)).number
    1
    """
    require_spark()
    return _maker(spark, log, where, most_tasks, task_bytes)


def _maker(spark: SparkSession, log: str, where: Where, most_tasks: int | None, task_bytes: int) -> SparkEngineMaker:
    address = log_address(address_options(log, where))
    if (most_tasks is not None and most_tasks < 1) or task_bytes < 1:
        raise ConfigError("most_tasks and task_bytes are at least 1", most_tasks=most_tasks, task_bytes=task_bytes)
    return SparkEngineMaker(
        spark=spark, where=address, most_tasks=most_tasks or _parallelism(spark), task_bytes=task_bytes
    )


def _parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, asked in a way that Spark Connect answers, and without a shuffle."""
    of_rows = spark.range(1 << 16).select(spark_partition_id().alias("partition"))
    return len(of_rows.toArrow().column("partition").unique())
