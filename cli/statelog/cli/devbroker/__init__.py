"""The development broker: the real Apache Kafka as one node on loopback, for newcomers, tests and the demo."""
