"""Reading: the one way behind a position of a log. Between storage and the rooms that write, fold, recover, serve."""

__all__: list[str] = []
