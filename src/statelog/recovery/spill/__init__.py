"""Passes frames between threads, in memory up to a budget and on disk above it."""

__all__: list[str] = []
