"""The installed versions of statelog and its dependencies. Imports no other package of statelog.

Kafka's protocol does not tell a broker's version; `statelog doctor --kafka` tries what the brokers can do.
"""

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str | None]:
    """Return the versions by name; None for a package that is not installed."""
    from confluent_kafka import libversion

    return {
        "statelog": _version("statelog"),
        "confluent_kafka": _version("confluent-kafka"),
        "librdkafka": libversion()[0],  # The version of the loaded library.
        "pyarrow": _version("pyarrow"),
        "pyspark": _version("pyspark"),
        "python": platform.python_version(),
    }


def _version(distribution: str) -> str | None:
    """Read the installed metadata; importing the package would take longer than everything else."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
