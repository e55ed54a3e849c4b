"""Carrying a plan out: runs and the tail, folded."""

__all__: list[str] = []
