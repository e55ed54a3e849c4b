"""The two topics: the settings that are asked of them, and the rights that each role needs. Pure."""

__all__: list[str] = []
