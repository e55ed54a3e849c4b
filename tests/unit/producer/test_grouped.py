"""Commits of several threads of one log, in one ledger record."""

import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, cast

import pytest

from statelog.errors import Fenced
from statelog.history.together import GroupCommit
from statelog.log import Log
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import Commits, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.testing.faults import Fate, ScriptedFaults
from tests.support.rigs.log import TwinLog, key_in

_COUNT = 3


@pytest.fixture
def twin() -> TwinLog:
    """Return a log of three partitions."""
    return TwinLog()


@pytest.fixture
def log(twin: TwinLog) -> Generator[Log]:
    """Open it."""
    with twin.open() as log:
        yield log


class _Threads:
    """Writers of one log, each in a thread of its own."""

    def __init__(self, log: Log, opened: ExitStack) -> None:
        self._log = log
        self._pools = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(_COUNT)]
        self.writers: Mapping[int, Writer] = {
            one: pool.submit(Writer, log, f"w{one}", partitions=[one]).result() for one, pool in enumerate(self._pools)
        }
        for one in range(_COUNT):
            opened.callback(self._close, one)
            self.commit(one, b"0").result()  # A witness accompanies the first.

    def _close(self, partition: int) -> None:
        self._pools[partition].submit(self.writers[partition].close).result()

    def commit(self, partition: int, value: bytes) -> Future[LastCommit]:
        """Put one key, and commit it in the writer's thread."""
        writer = self.writers[partition]

        def work() -> LastCommit:
            writer.put(key_in(self._log, partition), value)
            return writer.commit({"n": partition})

        return self._pools[partition].submit(work)

    def commit_behind(self, twin: TwinLog) -> dict[int, Future[LastCommit]]:
        """Commit all, the others while the first one waits for its answer, which comes once they are grouped."""
        commits = {0: self.commit(0, b"1")}
        _wait_until(lambda: twin.cluster.sends > self._sends)
        commits |= {one: self.commit(one, b"1") for one in range(1, _COUNT)}
        _wait_until(lambda: len(cast("Any", self._log.history)._group._waiting) == _COUNT - 1)
        twin.cluster.release()
        return commits

    def delay_next(self, twin: TwinLog, then: Fate = Fate.DELIVER) -> None:
        """Keep the next record in flight. `then`: the fate of the record behind it."""
        self._sends = twin.cluster.sends
        twin.cluster.faults = ScriptedFaults(fates={self._sends: Fate.DELAY, self._sends + 1: then})


def _wait_until(is_so: Any) -> None:
    until_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.001)


def _last(twin: TwinLog) -> object:
    return decode(twin.cluster.records("log.ledger", 0)[-1].value)


def test_threads_that_wait_share_a_record(twin: TwinLog, log: Log) -> None:
    """Commits that come while a thread waits for its own go out as one record, and each has its own outcome."""
    with ExitStack() as opened:
        threads = _Threads(log, opened)
        threads.delay_next(twin)
        done = {one: commit.result(30) for one, commit in threads.commit_behind(twin).items()}
        found = _last(twin)
        assert isinstance(found, Commits)
        assert len(found.commits) == _COUNT - 1
        assert done[1].offset == done[2].offset == done[0].offset + 1
        assert {one: commit.metadata for one, commit in done.items()} == {n: {"n": n} for n in range(_COUNT)}
        assert threads.commit(1, b"2").result(30).offset == done[1].offset + 1
    assert recover(log).to_dict() == {key_in(log, one): b"2" if one == 1 else b"1" for one in range(_COUNT)}


def test_a_fenced_writer_does_not_affect_the_others(twin: TwinLog, log: Log) -> None:
    """Each commit of a shared record is judged by itself."""
    with ExitStack() as opened, twin.open() as elsewhere:
        threads = _Threads(log, opened)
        opened.enter_context(Writer(elsewhere, "other", partitions=[1]))
        threads.delay_next(twin)
        commits = threads.commit_behind(twin)
        assert commits[2].result(30).offset == commits[0].result(30).offset + 1
        with pytest.raises(Fenced):
            commits[1].result(30)


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.ACK_WITHOUT_OFFSET])
def test_each_writer_resolves_an_unknown_outcome(twin: TwinLog, log: Log, fate: Fate) -> None:
    """An unknown outcome of a shared record is resolved by the Open of each writer in it."""
    with ExitStack() as opened:
        threads = _Threads(log, opened)
        threads.delay_next(twin, then=fate)
        commits = threads.commit_behind(twin)
        assert all(commit.result(30) for commit in commits.values())
        assert [threads.writers[one].statistics().settled_commits for one in range(_COUNT)] == [0, 1, 1]
    assert recover(log).to_dict() == {key_in(log, one): b"1" for one in range(_COUNT)}


def test_an_interrupted_sender_leaves_nobody_waiting(twin: TwinLog, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread that sends a shared record is interrupted, the commits in it have an unknown outcome."""
    with ExitStack() as opened:
        threads = _Threads(log, opened)
        threads.delay_next(twin)
        sends = cast("Any", GroupCommit)._send

        def interrupted(group: GroupCommit, history: Any, *given: Any) -> None:
            monkeypatch.undo()
            sends(group, cast("Any", _Interrupting()), *given)

        monkeypatch.setattr(GroupCommit, "_send", interrupted)
        commits = threads.commit_behind(twin)
        commits[0].result(30)
        ends = {type(commits[one].exception(30)) for one in range(1, _COUNT)}
        assert ends == {KeyboardInterrupt, type(None)}
    assert recover(log).to_dict()[key_in(log, 0)] == b"1"


def test_an_interrupted_waiter_has_its_commit_sent_by_nobody(
    twin: TwinLog, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a thread is interrupted before another one has sent its commit, that commit is never sent."""
    with ExitStack() as opened:
        threads = _Threads(log, opened)
        threads.delay_next(twin)
        first = threads.commit(0, b"1")
        _wait_until(lambda: cast("Any", log.history)._group._is_sending)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(GroupCommit, "_group_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                threads.commit(1, b"1").result(30)
        third = threads.commit(2, b"1")
        _wait_until(
            lambda: [one.commit.epoch for one in cast("Any", log.history)._group._waiting] == [_epoch(threads, 2)]
        )
        twin.cluster.release()
        assert first.result(30).offset + 1 == third.result(30).offset
    assert recover(log).to_dict() == {key_in(log, one): b"0" if one == 1 else b"1" for one in range(_COUNT)}


def _epoch(threads: _Threads, partition: int) -> int:
    return threads.writers[partition].grant.epoch


class _Interrupting:
    """A history whose sender is interrupted."""

    def send(self, *_: object) -> None:
        """Raise as a signal's handler may."""
        raise KeyboardInterrupt
