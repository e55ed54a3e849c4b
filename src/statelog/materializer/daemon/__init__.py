"""The daemon: schedules rounds, watches over them, and reports events."""

__all__: list[str] = []
