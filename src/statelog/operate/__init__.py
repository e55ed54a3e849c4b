"""Operate: checks and reports on clusters and logs, and the metrics, traces and health of a process."""

from statelog.operate.exporting import export_metrics, export_traces

__all__ = ["export_metrics", "export_traces"]
