"""Benchmarks of statelog, each with its baseline in the same run. See `python -m bench --help`."""
