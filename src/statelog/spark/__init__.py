"""Spark: `format("statelog")`, `upsert` for `foreachBatch`, frames by key group, rounds, errors. Needs pyspark.

Each name is loaded on first use: every worker of a session imports this package, and most need little of it.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from statelog.spark.columns import key_group_column, repartition_by_key_group
    from statelog.spark.data_source import register
    from statelog.spark.engine import materialize, spark_engine
    from statelog.spark.reported import error_of
    from statelog.spark.sink import upsert
    from statelog.spark.source import state

__all__ = [
    "error_of",
    "key_group_column",
    "materialize",
    "register",
    "repartition_by_key_group",
    "spark_engine",
    "state",
    "upsert",
]

_HOMES = {
    "statelog.spark.engine": ("materialize", "spark_engine"),
    "statelog.spark.columns": ("key_group_column", "repartition_by_key_group"),
    "statelog.spark.sink": ("upsert",),
    "statelog.spark.reported": ("error_of",),
    "statelog.spark.data_source": ("register",),
    "statelog.spark.source": ("state",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'statelog.spark' has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
