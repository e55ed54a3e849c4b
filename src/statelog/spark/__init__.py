"""Spark: `format("statelog")`, `upsert` for `foreachBatch`, frames by key group, rounds, errors. Needs pyspark."""

from statelog.spark.engine.materialize import materialize, spark_engine
from statelog.spark.key_groups import key_group_column, repartition_by_key_group
from statelog.spark.lake.export import Exported, export
from statelog.spark.reported import error_of
from statelog.spark.sink.upsert import Upsert, upsert
from statelog.spark.source.held_state import state

__all__ = [
    "Exported",
    "Upsert",
    "error_of",
    "export",
    "key_group_column",
    "materialize",
    "repartition_by_key_group",
    "spark_engine",
    "state",
    "upsert",
]
