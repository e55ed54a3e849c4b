"""Reading: the state of a log as a DataFrame."""

__all__: list[str] = []
