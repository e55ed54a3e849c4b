"""Writing: streaming and batch sinks, and `upsert`."""

__all__: list[str] = []
