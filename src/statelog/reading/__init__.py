"""Reading: the one way behind a position of a log. Between storage and those who write, fold, recover and serve."""

__all__: list[str] = []
