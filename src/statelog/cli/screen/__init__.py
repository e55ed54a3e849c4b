"""The screen: reports, progress, questions."""

__all__: list[str] = []
