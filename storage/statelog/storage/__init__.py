"""The storage room of statelog."""

__all__: list[str] = []
