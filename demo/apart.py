"""PySpark's worker daemon, with one difference: every worker is the leader of a session of its own.

Spark's local mode takes its workers down with the driver. On a cluster they run on other machines and live on for a
while, and a writer that they still serve must do no harm. In sessions of their own they outlive the driver here, too.
"""

import os

from pyspark.daemon import manager

__all__: list[str] = []

if __name__ == "__main__":
    os.register_at_fork(after_in_child=os.setsid)
    manager()
