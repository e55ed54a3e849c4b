"""The local disk: working directories, spilled rows, and failures."""

__all__: list[str] = []
