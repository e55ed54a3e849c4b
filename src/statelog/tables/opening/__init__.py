"""The door to a table, and what of a log is the table's."""

__all__: list[str] = []
