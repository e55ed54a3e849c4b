"""The materializer room of statelog."""

__all__: list[str] = []
