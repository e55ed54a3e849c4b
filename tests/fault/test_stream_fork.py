"""Streams and forks: a child neither waits for a thread that is not there nor takes anything away from its parent."""

import signal

import pytest

from statelog.errors import ClosedError
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.storage.held_lease import list_leases
from tests.support.processes.parts import output
from tests.support.processes.starts import in_fork
from tests.support.rigs.history import history_rig
from tests.support.rigs.stream_reader import Reader

_PATIENCE_S = 240.0


def test_a_child_that_was_forked_in_the_middle_of_a_fetch_ends() -> None:
    """Its exit handlers run to their end, although the fetching thread held the queue's lock at the fork."""
    printed = output("fork_of_a_stream")
    assert printed.splitlines()[-1] == "0"


def test_a_fork_leaves_its_parents_stream_and_lease_alone() -> None:
    """In the child, closing does nothing and everything else is refused; the parent goes on as if nothing had been."""
    rig, reader = history_rig(), Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(100)])
    recovery = recover(rig.log)
    with recovery.follow(poll_s=0.01) as stream:
        assert stream.wait_fetched(_PATIENCE_S)
        (held,) = list_leases(rig.log.store)

        def child() -> None:
            signal.alarm(10)  # Whatever hangs is killed.
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
