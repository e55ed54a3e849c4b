"""The schemas room of statelog."""

__all__: list[str] = []
