"""Kafka: the port for every request of statelog to a broker, and the client behind it. Decides nothing."""

from statelog.kafka.port import Kafka, Producer

__all__ = ["Kafka", "Producer"]
