"""PySpark's worker daemon, with one difference: every worker is the leader of a session of its own.

In Spark's local mode, workers die with the driver. On a cluster they run on other machines and outlive it for a while,
and their writers must do no harm. In sessions of their own they also outlive the driver here.
"""

import os

from pyspark.daemon import manager

__all__: list[str] = []

if __name__ == "__main__":
    os.register_at_fork(after_in_child=os.setsid)
    manager()
