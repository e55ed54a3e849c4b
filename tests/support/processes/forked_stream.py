"""A part that forks while its stream writes to the spill.

The fork happens while the fetching thread holds the queue's lock, and the child ends as any process does, through its
exit handlers. Prints the child's exit code, or `hung` if it had to be killed.
"""

import os
import signal
import sys
import threading
import time

from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from tests.support.rigs.history import history_rig

__all__ = ["fork_of_a_stream"]

_CHILD_S = 60.0


def _wait(pid: int) -> str:
    """The child's exit code, within its time."""
    ends_s = time.monotonic() + _CHILD_S
    while time.monotonic() < ends_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def fork_of_a_stream() -> None:
    """Fork in the middle of a write."""
    writing, go_on, pwrite = threading.Event(), threading.Event(), os.pwrite

    def slow(descriptor: int, data: bytes, offset: int) -> int:
        writing.set()
        go_on.wait()
        return pwrite(descriptor, data, offset)

    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"x" * 2000) for i in range(200)])
    os.__dict__["pwrite"] = slow
    with recover(rig.log, settings=RecoverySettings(memory_bytes=64 * 1024)).stream():
        writing.wait()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        ended = _wait(pid)
        go_on.set()
    sys.stdout.write(ended + "\n")
