"""Carries out a plan: reads runs and the tail, and folds them."""

__all__: list[str] = []
