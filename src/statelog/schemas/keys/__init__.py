"""Keys: their bytes, the key groups that they belong to, and the shares of many workers. Pure."""

__all__: list[str] = []
