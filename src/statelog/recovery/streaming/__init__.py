"""State in portions, and the commits behind it, as fast as their reader takes them."""

__all__: list[str] = []
