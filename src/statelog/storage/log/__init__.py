"""A log: its files, topics and ports, how it is opened, and what to do about its losses."""

__all__: list[str] = []
