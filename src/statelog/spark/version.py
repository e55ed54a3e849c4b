"""Which Spark: one that is too old is refused, before anything is imported that it lacks."""

import re

import pyspark

from statelog.errors import ConfigError

__all__ = ["require_spark"]

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
