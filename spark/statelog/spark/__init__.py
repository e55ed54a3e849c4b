"""The spark room of statelog."""

__all__: list[str] = []
