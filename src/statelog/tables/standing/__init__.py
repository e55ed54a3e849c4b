"""Standbys: states of tables that others own, followed, read, and promoted to tables."""

__all__: list[str] = []
