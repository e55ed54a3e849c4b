"""Operate: what is asked about a cluster or a log, what the answers say, and what a process tells of itself."""

from statelog.operate.exporting import export_metrics, export_traces

__all__ = ["export_metrics", "export_traces"]
