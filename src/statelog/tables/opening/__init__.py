"""Opening a table: the owner's Open, and then the state at or above it."""

__all__: list[str] = []
