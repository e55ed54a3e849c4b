"""A log as a place: its files, its topics, its ports, and what of it was lost."""

__all__: list[str] = []
