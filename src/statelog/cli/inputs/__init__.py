"""Inputs of `statelog append`: JSON lines and Parquet, as batches of changes with a place to resume from."""

__all__: list[str] = []
