"""The two topics: the settings they must have, and the rights that each role needs. Pure."""

__all__: list[str] = []
