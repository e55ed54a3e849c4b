"""What Spark finds: `format("statelog")`, with nothing to register where the wheel is installed.

Spark imports every top-level module called `pyspark_*` in a worker of every session, and a failing import breaks all
look-ups of data sources, not only ours. So this module imports nothing of statelog before it is asked to.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamArrowWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source `statelog`: a log's state to read, its changes to write."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "statelog"

    def schema(self) -> "StructType":
        """The columns of the state. Raises ConfigError, NotFound, Unavailable."""
        from statelog.spark.source import state_schema

        return state_schema(self.options)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """A batch reader of the state."""
        from statelog.spark.source import StateReader

        return StateReader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """A batch writer of changes; does no I/O."""
        from statelog.spark.batch_sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamArrowWriter":  # noqa: N802  # Spark's name
        """A streaming writer of changes; does no I/O."""
        from statelog.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
