"""The versions of statelog and of what it rests on, as they are installed. Loads no room.

Kafka's protocol tells no broker's version: what brokers are able to do is tried by `statelog doctor --kafka`.
"""

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str | None]:
    """By name; None for what is not installed."""
    from confluent_kafka import libversion

    return {
        "statelog": _version("statelog"),
        "confluent_kafka": _version("confluent-kafka"),
        "librdkafka": libversion()[0],  # Of the library that is really loaded.
        "pyarrow": _version("pyarrow"),
        "pyspark": _version("pyspark"),
        "python": platform.python_version(),
    }


def _version(distribution: str) -> str | None:
    """From the installed metadata, because importing the package would take longer than all else."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
