"""Lake: a Delta Lake table that is kept equal to a log."""

__all__: list[str] = []
