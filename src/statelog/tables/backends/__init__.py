"""Where a table's committed state is: in a dict, or in a RocksDB directory."""

__all__: list[str] = []
