"""Frames from one thread to another, in memory up to a budget and on the disk above it."""

__all__: list[str] = []
