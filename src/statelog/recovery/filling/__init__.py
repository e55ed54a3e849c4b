"""How a planned state gets into a target: the steps, their progress, and their numbers."""

__all__: list[str] = []
