"""A standby: the state of a table that another process owns; it is followed, read, and promoted."""

__all__: list[str] = []
