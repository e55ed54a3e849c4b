"""The configuration: its sources, its keys, and how people write sizes and durations."""

__all__: list[str] = []
