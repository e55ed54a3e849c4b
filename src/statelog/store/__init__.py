"""The store: the port through which statelog asks a file system, and a log's files on it. Decides nothing."""

from statelog.store.port import Store

__all__ = ["Store"]
