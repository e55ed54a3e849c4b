"""The data source `format("statelog")`, the required version of Spark, and `register`, for one session.

A data source that Spark discovers runs in the Python of the driver's environment, on executors, too. A registered one
runs in the Python of the session's other workers, and needs no package installed where Spark searches.

Invariant: a Spark that is too old is refused before an import fails on it. Each method imports only the modules that it
needs.
"""

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession, datasource

from statelog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from statelog.spark.source import Loaded

_FLOOR = (4, 2)


def require_spark(version: str | None = None) -> None:
    """Raise ConfigError for a version of Spark that is too old; None is the one in use."""
    version = pyspark.__version__ if version is None else version
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _FLOOR:
        raise ConfigError(
            f"statelog needs pyspark {_FLOOR[0]}.{_FLOOR[1]} or newer, not {version}",
            hint="Upgrade pyspark: that version is the first with Arrow stream writers and admission control",
        )


def register(spark: SparkSession) -> None:
    """Make `format("statelog")` known to this session. On a cluster, call it first. Raises ConfigError.

        >>> register(spark)

    Planning and tasks then run in the Python that `PYSPARK_PYTHON` or the setting `spark.pyspark.python` names, like
    Python functions. Call it in each thread of the driver that writes. Idempotent; also for Spark Connect.
    """
    require_spark()
    spark.dataSource.register(StatelogSource)
    activate(spark)


def activate(spark: SparkSession) -> None:
    """Let Spark find data sources in this thread. Does nothing with Spark Connect.

    For a write Spark searches the thread's active session, and a new thread has none.
    """
    classic: Any = spark
    jvm = getattr(classic, "_jvm", None)
    if jvm is not None:
        sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(classic._jsparkSession)


class StatelogSource(datasource.DataSource):
    """The data source `statelog`: reads a log's state, its changes, or views of it, and writes changes.

    Spark asks it for the columns once for each `load()`, pickles it, and uses a copy for every scan of the DataFrame.
    So the position is chosen together with the columns, and all scans read the same state.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raise ConfigError for a Spark that is too old, before an import fails on it."""
        require_spark()
        super().__init__(options)
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "statelog"

    def schema(self) -> "StructType":
        """Return the columns of a read. Raises ConfigError, NotFound, Unavailable."""
        from statelog.spark.options import names_stream
        from statelog.spark.source import load

        if names_stream(self.options):
            from statelog.spark.stream_reader import stream_columns

            return stream_columns(self.options)
        columns, self._loaded = load(self.options)
        return columns

    def reader(self, schema: "StructType") -> "datasource.DataSourceReader":
        """Return a batch reader for the option `read`."""
        from statelog.spark.source import reader

        return reader(self.options, schema, self._loaded)

    def streamReader(self, schema: "StructType") -> "datasource.DataSourceStreamReader":  # noqa: N802  # Spark's name
        """Return a reader of committed changes as micro-batches, without I/O."""
        from statelog.spark.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "datasource.DataSourceWriter":
        """Return a batch writer of changes, without I/O."""
        from statelog.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "datasource.DataSourceStreamArrowWriter":  # noqa: N802  # Spark's name
        """Return a streaming writer of changes, without I/O."""
        from statelog.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
