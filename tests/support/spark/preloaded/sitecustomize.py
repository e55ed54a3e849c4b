"""Imports for the daemons that fork Spark's Python workers, so that no worker imports statelog by itself.

Python runs this module at the start of every process that has its folder on the path: a session of
tests/support/spark/session.py puts it there. Spark starts a daemon for each kind of work, and forks dozens of workers
from it. Like Spark's own modules, those of statelog are then there before the fork: half of a worker's life is their
import. The daemon holds no client and no thread of ours. A test of what a worker imports, or of its logs, puts a folder
with a module of this name before this one.
"""

import sys
from importlib import import_module

__all__: list[str] = []

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    for name in ("statelog.spark.sink", "statelog.spark.source", "statelog.recovery"):
        import_module(name)
