"""Figures of statelog, each beside its baseline in the same run. `python -m bench --help`."""
