"""What to read: the state that is asked for, a plan of it, and the lease under that."""

__all__: list[str] = []
