"""The cli room of statelog."""

__all__: list[str] = []
