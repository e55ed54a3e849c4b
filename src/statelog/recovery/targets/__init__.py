"""Targets of a recovery: how they are filled, and a dict, an Arrow table, a Parquet file, a RocksDB database."""

__all__: list[str] = []
