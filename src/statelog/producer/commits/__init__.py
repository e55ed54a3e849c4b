"""From an Open to a commit of known outcome."""

__all__: list[str] = []
