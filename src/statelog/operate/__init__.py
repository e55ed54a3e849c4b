"""Operate: what is asked about a cluster, and what the answers say. Its findings are shown by `statelog doctor`."""

__all__: list[str] = []
