"""Processes that start in a tenth of the time: a forked child that runs one check, and children of a server.

The server has imported what is slow to import, and has no threads and no clients, so its children may have both.
"""

import contextlib
import gc
import os
import resource
import sys
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

__all__ = ["in_fork", "leave_files_to_open", "quick_start"]


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


def leave_files_to_open(count: int) -> None:
    """Bring this process to its limit of open files, but for `count`; only for a child of its own."""
    gc.collect()
    gc.freeze()  # What the parent left to be collected would close files, and so make room, at any moment.
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + count + 1  # noqa: PTH208 - names, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for descriptor in held[-count:]:
        os.close(descriptor)


def quick_start() -> ForkServerContext:
    """The context to make processes, pipes and queues with."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["statelog.producer", "statelog.recovery", "statelog.storage", "statelog.tables"])
    return context
