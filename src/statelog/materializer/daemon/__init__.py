"""The daemon: when a round begins, who watches it, and what it tells."""

__all__: list[str] = []
