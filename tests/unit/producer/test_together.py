"""Several writers' commits in one ledger record."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest

from statelog.errors import Fenced
from statelog.history import together
from statelog.log import Log
from statelog.materializer.target import choose_target
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import Commits, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.testing.faults import Fate, ScriptedFaults
from tests.support.rigs.log import TwinLog, key_in, settings_for


@pytest.fixture
def twin() -> TwinLog:
    """Return a log of three partitions."""
    return TwinLog()


@pytest.fixture
def log(twin: TwinLog) -> Generator[Log]:
    """Return the log, open."""
    with twin.open() as log:
        yield log


def _writers(log: Log, opened: ExitStack) -> dict[int, Writer]:
    return {one: opened.enter_context(Writer(log, f"w{one}", partitions=[one])) for one in range(3)}


def _send(log: Log, writers: Mapping[int, Writer], value: bytes) -> dict[int, Pending[LastCommit]]:
    """Put one key of each writer's partition, and send their commits."""
    sent: dict[int, Pending[LastCommit]] = {}
    for partition, writer in writers.items():
        writer.put(key_in(log, partition), value)
        pending = writer.commit_carried({"n": partition})
        assert pending is not None
        sent[partition] = pending
    return sent


def _records(twin: TwinLog) -> list[object]:
    return [decode(record.value) for record in twin.cluster.records("log.ledger", 0)]


def test_they_are_one_record_and_have_one_place(twin: TwinLog, log: Log) -> None:
    """Commits sent together are one record at one offset. Each writer gets its own result, and continues alone."""
    with ExitStack() as opened:
        writers = _writers(log, opened)
        with together():
            sent = _send(log, writers, b"1")
            assert not any(isinstance(one, Commits) for one in _records(twin))
        done = {partition: pending.result() for partition, pending in sent.items()}
        found = _records(twin)[-1]
        assert isinstance(found, Commits)
        assert len(found.commits) == 3
        assert len({one.offset for one in done.values()}) == 1
        assert {partition: one.metadata for partition, one in done.items()} == {n: {"n": n} for n in range(3)}
        writers[1].put(key_in(log, 1), b"2")
        writers[1].commit()
    assert recover(log).to_dict() == {key_in(log, 0): b"1", key_in(log, 1): b"2", key_in(log, 2): b"1"}


def test_who_waits_inside_of_the_block_has_it_sent(log: Log) -> None:
    """Waiting for a commit inside of the block sends it."""
    with ExitStack() as opened, together():
        sent = _send(log, _writers(log, opened), b"1")
        assert not sent[0].done()
        assert len({sent[partition].result().offset for partition in (2, 0, 1)}) == 1


def test_one_that_is_fenced_is_nothing_to_the_others(twin: TwinLog, log: Log) -> None:
    """Commits of one record are judged separately, in their order: a fenced writer does not affect the others."""
    with ExitStack() as opened, twin.open() as elsewhere:
        writers = _writers(log, opened)
        opened.enter_context(Writer(elsewhere, "other", partitions=[1]))
        with together():
            sent = _send(log, writers, b"1")
        assert sent[0].result().offset == sent[2].result().offset
        with pytest.raises(Fenced):
            sent[1].result()
    assert recover(log).to_dict() == {key_in(log, 0): b"1", key_in(log, 2): b"1"}


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.ACK_WITHOUT_OFFSET])
def test_each_settles_its_own_where_the_outcome_is_unknown(twin: TwinLog, log: Log, fate: Fate) -> None:
    """After an unknown outcome, each writer's Open resolves its own commit.

    The commit is in the ledger, or it is void and sent again.
    """
    with ExitStack() as opened:
        writers = _writers(log, opened)
        _send(log, {0: writers[0]}, b"0")[0].result()  # A witness accompanies the first.
        twin.cluster.faults = ScriptedFaults(fates={twin.cluster.sends: fate})
        with together():
            sent = _send(log, writers, b"1")
        done = {partition: pending.result() for partition, pending in sent.items()}
        assert len({one.offset for one in done.values()}) == (3 if fate is Fate.LOSE else 1)
        assert all(writer.statistics().settled_commits == 1 for writer in writers.values())
    assert recover(log).to_dict() == {key_in(log, partition): b"1" for partition in range(3)}


def _commit_together(log: Log, value: bytes) -> int:
    """Write three commits in one record, and return the position right behind it."""
    with ExitStack() as opened:
        writers = _writers(log, opened)
        with together():
            sent = _send(log, writers, value)
        return next(iter({pending.result().offset for pending in sent.values()})) + 1


def test_a_round_takes_all_of_a_record_or_none(log: Log, tmp_path: Path) -> None:
    """A round's budget ends between two records, so a snapshot includes all commits of a record or none."""
    first = _commit_together(log, b"1")
    _commit_together(log, b"2")
    settings = settings_for(tmp_path, budget_commits=1)
    target = choose_target(log, None, settings, log.history.end())
    assert (len(target.commits), target.behind) == (3, True)
    assert target.state.position >= first


def test_who_follows_has_all_of_a_record_or_none(log: Log) -> None:
    """A follower's position is complete once every commit of its record is applied."""
    with recover(log).follow(poll_s=0.01) as stream:
        assert stream.take() is not None
        position = _commit_together(log, b"1")
        keys = set[bytes]()
        while stream.cursor.position < position:
            portion = stream.take()
            assert portion is not None
            keys |= set(portion.changes.column("key").to_pylist())
            assert not portion.cursor.is_complete or portion.cursor.position < position or len(keys) == 3
            if portion.cursor.is_complete and portion.cursor.position == position:
                break
        assert keys == {key_in(log, partition) for partition in range(3)}


def test_a_small_record_of_many_is_more_than_one(twin: TwinLog, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that exceed one record go out as several. Each is sent at once when the next one begins."""
    monkeypatch.setattr(import_module("statelog.history.together"), "_MOST_BYTES", 700)
    with ExitStack() as opened:
        writers = _writers(log, opened)
        before = len(_records(twin))
        with together():
            sent = _send(log, writers, bytes(300))
        assert len({pending.result().offset for pending in sent.values()}) == len(_records(twin)) - before > 1
