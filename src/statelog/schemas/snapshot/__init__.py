"""Snapshots: manifests, runs, leases, subscriptions, and which of them are retained. Pure."""

__all__: list[str] = []
