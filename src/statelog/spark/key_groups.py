"""Key groups in Spark: the column, and a DataFrame arranged so that each key group is in one task.

Two tasks of a batch must not write the same key group, for nothing orders them. Arranged like this they cannot, and
each task writes to few partitions, which is also the fastest: persisting costs a request for each.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom
from pyspark.sql.types import IntegerType

from statelog.errors import ConfigError
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, spark_expression
from statelog.storage.log.log import Log

__all__ = ["key_group_column", "repartition_by_key_group"]


def key_group_column(name: str, key_type: KeyType | str, key_groups: int, prefix_bytes: int | None = None) -> Column:
    """The key group (int) of the top-level column `name`, as every part of statelog computes it; null for a null.

    It needs no look at the log:

        >>> people = spark.createDataFrame([("alice",)], "name string")
        >>> people.select(key_group_column("name", "string", 128)).first()[0]
        71
    """
    return F.expr(spark_expression(name, key_type, key_groups, prefix_bytes))


def repartition_by_key_group(df: DataFrame, log: Log | Descriptor, tasks: int | None = None) -> DataFrame:
    """`df` in `tasks` partitions (None: as many as the log has) of adjacent key groups, ready to be written.

    Needs the column `key`, or `key_group` if the log's callers place their keys. Raises ConfigError.

        >>> rows = spark.createDataFrame([(b"alice", b"1")], "key binary, value binary")
        >>> repartition_by_key_group(rows, log).rdd.getNumPartitions()
        4
    """
    descriptor = log.descriptor if isinstance(log, Log) else log
    count = descriptor.partitions if tasks is None else tasks
    if not 1 <= count <= descriptor.key_groups:
        raise ConfigError(
            f"{count} tasks for {descriptor.key_groups} key groups", hint="Use at most one task per key group"
        )
    if descriptor.hash_rule is HashRule.CALLER:
        group = F.col("key_group").cast(IntegerType())
    else:
        group = key_group_column("key", descriptor.key_type, descriptor.key_groups, descriptor.prefix_bytes)
    task = F.floor(group * F.lit(count) / F.lit(descriptor.key_groups)).cast(IntegerType())
    return df.repartitionById(count, task)
