"""Engines: the tasks that write a round's runs, the work that a task is, and who carries it out."""

__all__: list[str] = []
