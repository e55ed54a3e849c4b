"""What Spark finds: `format("statelog")`, with nothing to register where the wheel is installed.

Spark imports every top-level module called `pyspark_*` in a worker of every session, and a failing import breaks all
look-ups of data sources, not only ours. So this module imports nothing of statelog before it is asked to.
"""

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql import datasource

__all__ = ["DefaultSource"]


class DefaultSource(datasource.DataSource):
    """Stands for the data source `statelog`: whoever makes one gets that."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        """Make a `StatelogSource`. Raises ConfigError for a Spark that is too old, before an import fails on it."""
        from statelog.spark.data_source import StatelogSource

        return StatelogSource(options)

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "statelog"
