"""A member of a group of workers on a Kafka topic: a table for each partition that the group gives it."""

__all__: list[str] = []
