"""What Spark finds: `format("statelog")`, with nothing to register where the wheel is installed.

Spark imports every top-level module called `pyspark_*` in a worker of every session, and a failing import breaks all
look-ups of data sources, not only ours. So this module imports nothing of statelog before it is asked to.
"""

from typing import TYPE_CHECKING

from pyspark.sql import datasource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from statelog.spark.source import Loaded

__all__ = ["DefaultSource"]


class DefaultSource(datasource.DataSource):
    """The data source `statelog`: a log's state, its changes, or views of it to read, and changes to write.

    Spark asks it for the columns once for each `load()`, pickles it, and has every scan of the DataFrame read through a
    copy. So the position is taken with the columns, and all scans read the same.
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Raises ConfigError for a Spark that is too old, before an import fails on it."""
        from statelog.spark.session import require_spark

        require_spark()
        super().__init__(options)
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "statelog"

    def schema(self) -> "StructType":
        """The columns of what is read. Raises ConfigError, NotFound, Unavailable."""
        from statelog.spark.options import names_stream
        from statelog.spark.source import load

        if names_stream(self.options):
            from statelog.spark.stream_reader import stream_columns

            return stream_columns(self.options)
        columns, self._loaded = load(self.options)
        return columns

    def reader(self, schema: "StructType") -> "datasource.DataSourceReader":
        """A batch reader of what the option `read` names."""
        from statelog.spark.source import reader

        return reader(self.options, schema, self._loaded)

    def streamReader(self, schema: "StructType") -> "datasource.DataSourceStreamReader":  # noqa: N802  # Spark's name
        """A reader of committed changes as micro-batches; does no I/O yet."""
        from statelog.spark.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "datasource.DataSourceWriter":
        """A batch writer of changes; does no I/O."""
        from statelog.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "datasource.DataSourceStreamArrowWriter":  # noqa: N802  # Spark's name
        """A streaming writer of changes; does no I/O."""
        from statelog.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
