"""Snapshots: manifests, runs, leases, subscriptions, and which of them are kept. Pure."""

__all__: list[str] = []
