"""What Spark asks of `format("statelog")`, which Spark may ask, and `register`, which tells one session of it.

What Spark finds by itself it runs in the Python of the driver's environment, on executors, too. What is registered runs
in the Python of the session's other workers, and needs no package installed where Spark looks.

Invariant: a Spark that is too old is refused before anything is imported that it lacks. Each answer imports what it
needs, and no more.
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
    """Raise ConfigError for a Spark whose Python data sources lack what statelog needs; None is the one in use."""
    version = pyspark.__version__ if version is None else version
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _FLOOR:
        raise ConfigError(
            f"statelog needs pyspark {_FLOOR[0]}.{_FLOOR[1]} or newer, not {version}",
            hint="It is the first with Arrow stream writers and admission control",
        )


def register(spark: SparkSession) -> None:
    """Make `format("statelog")` known to this session. On a cluster, call it first. Raises ConfigError.

        >>> register(spark)

    Planning and tasks then run in the Python that `PYSPARK_PYTHON`, or the setting `spark.pyspark.python`, names, as
    functions in Python do. A thread of the driver that writes calls it, too. Idempotent; also for Spark Connect.
    """
    require_spark()
    spark.dataSource.register(StatelogSource)
    activate(spark)


def activate(spark: SparkSession) -> None:
    """Have Spark find data sources in this thread: to write it looks for them in the thread's active session, and a new
    thread has none. Nothing with Spark Connect.
    """
    classic: Any = spark
    jvm = getattr(classic, "_jvm", None)
    if jvm is not None:
        sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(classic._jsparkSession)


class StatelogSource(datasource.DataSource):
    """The data source `statelog`: a log's state, its changes, or views of it to read, and changes to write.

    Spark asks it for the columns once for each `load()`, pickles it, and has every scan of the DataFrame read through a
    copy. So the position is taken with the columns, and all scans read the same.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises ConfigError for a Spark that is too old, before an import fails on it."""
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
