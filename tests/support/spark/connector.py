"""Spark's own Kafka connector: fetched once, its jars pinned by name and SHA-256, stored next to the broker's.

The connector of the newest pyspark is not served everywhere. So this is the newest set that is, from versions that work
together; each use names it.
"""

from pathlib import Path

from statelog.testing.node import parse_pins
from tests.support.services.emulators import kept_jars

__all__ = ["CONNECTOR", "connector_jars"]

CONNECTOR = "spark-sql-kafka 4.2.0, token provider 4.0.0, kafka-clients 3.9.2, commons-pool2 2.13.1"
_PINS = parse_pins("""
f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f  org.apache.commons:commons-pool2:2.13.1
014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8  org.apache.kafka:kafka-clients:3.9.2
64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705  org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767  org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
""")  # noqa: E501 - a checksum and a name


def connector_jars() -> list[Path]:
    """Return the connector's jars, for `spark.jars`. Raises Unavailable if they cannot be had, Corrupt, ConfigError."""
    return sorted(kept_jars("spark-kafka-4.2.0", _PINS).iterdir())
