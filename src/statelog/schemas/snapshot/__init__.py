"""Snapshots: manifests, runs, leases, and what is kept of them. Pure."""

__all__: list[str] = []
