"""Spark as the materializer's engine: rounds whose folds and merges are Spark tasks."""

__all__: list[str] = []
