"""The producer room of statelog."""

__all__: list[str] = []
