"""The committed state of a table: a store, in a dict or in RocksDB, and the snapshot that has the missing part."""

__all__: list[str] = []
