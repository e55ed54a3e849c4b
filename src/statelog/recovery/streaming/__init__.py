"""A state in portions, and the commits behind it, at the pace of their reader."""

__all__: list[str] = []
