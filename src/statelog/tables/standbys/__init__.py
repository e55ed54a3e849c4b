"""A standby: the state of a table that another process owns, followed, read meanwhile, and promoted."""

__all__: list[str] = []
