"""The development broker: a real Apache Kafka as one node on loopback, for newcomers, tests and the demo."""

from statelog.cli.devbroker.dev import DevBroker, DevSettings, DevStatus, start, status, stop
from statelog.cli.devbroker.embedded import EmbeddedBroker

__all__ = ["DevBroker", "DevSettings", "DevStatus", "EmbeddedBroker", "start", "status", "stop"]
