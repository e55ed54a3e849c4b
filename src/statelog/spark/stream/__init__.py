"""Streaming: committed changes as micro-batches, from a place of the history on, held while the query is stopped."""

__all__: list[str] = []
