"""The committed state of a table: a store, in a dict or in RocksDB, and of what it misses the snapshot that has it."""

__all__: list[str] = []
