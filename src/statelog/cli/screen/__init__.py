"""What a person sees: reports, progress, questions."""

__all__: list[str] = []
