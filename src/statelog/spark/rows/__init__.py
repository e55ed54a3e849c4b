"""Rows: from a DataFrame's columns to changes of a log, checked at planning, and again in the tasks."""

__all__: list[str] = []
