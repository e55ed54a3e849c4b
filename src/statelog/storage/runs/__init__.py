"""Runs on the store: written, read, merged."""

__all__: list[str] = []
