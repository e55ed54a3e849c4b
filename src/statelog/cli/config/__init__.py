"""The configuration: where it comes from, what it may say, and how people write sizes and durations."""

__all__: list[str] = []
