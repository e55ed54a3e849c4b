"""From an Open to a commit whose outcome is known."""

__all__: list[str] = []
