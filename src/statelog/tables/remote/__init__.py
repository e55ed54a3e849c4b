"""State that is not local yet: read from a snapshot's runs by key and by range, and loaded behind the table's back."""

__all__: list[str] = []
