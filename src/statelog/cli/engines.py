"""Engines by name: who carries out a round's folds and merges, as the option and the configuration say it."""

from statelog.cli.config.merge import CliConfig
from statelog.errors import ConfigError
from statelog.materializer import EngineMaker, LocalEngine

__all__ = ["engine_for"]


def engine_for(config: CliConfig, log: str) -> EngineMaker:
    """The engine that the configuration names, for this log. Raises ConfigError.

    `spark` is the session of this process: that of spark-submit, of Spark Connect where SPARK_REMOTE names it, or a
    local one. It lives as long as the process.
    """
    if config.materializer.get("engine", "local") == "local":
        return LocalEngine
    try:
        from pyspark.sql import SparkSession  # Loaded for this engine alone: it takes a second.

        from statelog.spark import spark_engine
    except ImportError as error:
        raise ConfigError("the engine spark needs pyspark", hint="pip install 'statelog[spark]'") from error
    builder: SparkSession.Builder = SparkSession.builder  # pyright: ignore[reportAssignmentType] # a class property
    return spark_engine(
        builder.appName(f"statelog materialize {log}").getOrCreate(),
        log,
        kafka=config.kafka_settings(),
        root=config.root_url(),
        storage_options=config.storage,
        allow_unsafe=config.allow_unsafe,
    )
