"""From an appended change to a record that Kafka has acknowledged."""

__all__: list[str] = []
