"""Commits of a table that are under way, and what is told of them."""

__all__: list[str] = []
