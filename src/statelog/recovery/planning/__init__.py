"""What to read: the requested state, its plan, and the lease that holds it."""

__all__: list[str] = []
