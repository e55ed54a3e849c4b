"""From a change that is appended to records that Kafka has reported."""

__all__: list[str] = []
