"""Which Spark may be used, and `register`, which makes `format("statelog")` known to one session of it.

What Spark finds by itself it runs in the Python of the driver's environment, on executors, too. What is registered runs
in the Python of the session's other workers, and needs no package installed where Spark looks.

Invariant: a Spark that is too old is refused before anything is imported that it lacks.
"""

import re
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from pyspark_statelog import DefaultSource
from statelog.errors import ConfigError

_FLOOR = (4, 2)


def register(spark: SparkSession) -> None:
    """Make `format("statelog")` known to this session. On a cluster, call it first. Raises ConfigError.

        >>> register(spark)

    Planning and tasks then run in the Python that `PYSPARK_PYTHON`, or the setting `spark.pyspark.python`, names, as
    functions in Python do. A thread of the driver that writes calls it, too. Idempotent; also for Spark Connect.
    """
    require_spark()
    spark.dataSource.register(DefaultSource)
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


def require_spark(version: str | None = None) -> None:
    """Raise ConfigError for a Spark whose Python data sources lack what statelog needs; None is the one in use."""
    version = pyspark.__version__ if version is None else version
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _FLOOR:
        raise ConfigError(
            f"statelog needs pyspark {_FLOOR[0]}.{_FLOOR[1]} or newer, not {version}",
            hint="It is the first with Arrow stream writers and admission control",
        )
