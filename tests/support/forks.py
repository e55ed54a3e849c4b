"""A forked child that runs one check."""

import os
import sys
import traceback
from collections.abc import Callable

__all__ = ["in_fork"]


def in_fork(check: Callable[[], None]) -> int:
    """Run `check` in a forked child; returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:  # noqa: BLE001 - a child must not run on into pytest
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
