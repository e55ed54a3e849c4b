"""Targets of a recovery: a dict, an Arrow table, a Parquet file, a RocksDB database."""

__all__: list[str] = []
