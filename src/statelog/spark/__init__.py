"""Spark: `format("statelog")`, `upsert` for `foreachBatch`, and DataFrames arranged by key group. Needs pyspark."""

from statelog.spark.key_groups import key_group_column, repartition_by_key_group
from statelog.spark.sink.upsert import Upsert, upsert

__all__ = ["Upsert", "key_group_column", "repartition_by_key_group", "upsert"]
