"""Streams and forks: a child neither waits for a missing thread nor takes anything away from its parent."""

import os
import signal
import sys
import threading
import time

import pytest

from statelog.errors import ClosedError
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from tests.support.processes.parts import output
from tests.support.processes.starts import in_fork
from tests.support.rigs.history import Reader, history_rig

_CHILD_S = 60.0
_PATIENCE_S = 240.0


def _wait(pid: int) -> str:
    """Return the child's exit code, within its time."""
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
    """Fork in the middle of a write to the spill, while the fetching thread holds the queue's lock.

    The child ends as any process does, through its exit handlers. Print its exit code, or `hung` if it had to be
    killed.
    """
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


def test_a_child_that_was_forked_in_the_middle_of_a_fetch_ends() -> None:
    """A child's exit handlers run to their end, although the fetching thread held the queue's lock at the fork."""
    printed = output(fork_of_a_stream)
    assert printed.splitlines()[-1] == "0"


def test_a_fork_leaves_its_parents_stream_and_lease_alone() -> None:
    """In the child, closing does nothing and every other call is refused; the parent goes on undisturbed."""
    rig, reader = history_rig(), Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(100)])
    recovery = recover(rig.log)
    with recovery.follow(poll_s=0.01) as stream:
        assert stream.wait_fetched(_PATIENCE_S)
        (held,) = list_leases(rig.log.store)

        def child() -> None:
            signal.alarm(10)  # A hanging child is killed.
            stream.close()
            recovery.close()
            assert list_leases(rig.log.store) == [held]
            for use in (stream.take, stream.stop, stream.statistics, stream.wait_fetched, recovery.to_dict):
                with pytest.raises(ClosedError):
                    use()
            with pytest.raises(ClosedError), stream.pending():
                pass

        assert in_fork(child) == 0
        while not reader.state or not reader.cursor.is_complete:
            reader.apply(next(stream))
    assert reader.state == rig.state_at(rig.end())
    assert list_leases(rig.log.store) == []
