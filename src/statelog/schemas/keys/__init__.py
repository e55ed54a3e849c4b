"""Keys: their bytes, their key groups, and the shares of many workers. Pure."""

__all__: list[str] = []
