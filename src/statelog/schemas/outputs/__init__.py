"""Outputs: messages that leave with a commit, as values, in bulk, and as chunks of the data topic. Pure."""

__all__: list[str] = []
