"""A snapshot that a state stands on: its runs read where they lie, by key and by range."""

__all__: list[str] = []
