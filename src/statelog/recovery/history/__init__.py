"""Committed changes between two positions: planned once, cut into tasks, read anywhere."""

__all__: list[str] = []
