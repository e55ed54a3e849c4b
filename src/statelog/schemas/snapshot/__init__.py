"""Snapshots: manifests, runs, leases, and which of them are kept. Pure."""

__all__: list[str] = []
