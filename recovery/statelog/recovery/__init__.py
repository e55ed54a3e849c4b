"""The recovery room of statelog."""

__all__: list[str] = []
