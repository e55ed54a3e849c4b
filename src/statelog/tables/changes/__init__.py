"""What a table's keys and values are, and the changes that no commit holds yet."""

__all__: list[str] = []
