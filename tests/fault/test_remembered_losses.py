"""One process's memory of a ledger that lost records and grew again, also of clients that are closed, idle or behind.

It counts until it was compared, and raises until a person has accepted the loss.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import AnchorMismatch, BrokerUnavailable, DataLoss, Fenced, StatelogError
from statelog.history import COMPARE_S, History, following
from statelog.kafka.port import OffsetRange
from statelog.log import Log, accept_ledger_loss
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading import AtPosition, plan_changes
from statelog.recovery import RecoverySettings, recover
from statelog.recovery.changes import CommitFeed
from statelog.schemas.ledger.place import ORIGIN
from statelog.testing.kafka import MemoryKafka, MemoryReader
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, key_in, settings_for


def _lose(twin: TwinLog, offset: int, *, strange: int = 1) -> None:
    """Lose this ledger record and all behind it, and let it grow again by a process that knows nothing of that."""
    twin.cluster.lose_tail("log.ledger", 0, offset)
    write_all(MemoryKafka(cluster=twin.cluster), "log.ledger", 0, [b"somebody's"] * strange)


@contextmanager
def _process(twin: TwinLog) -> Generator[Log]:
    """Yield a log of a process on the twin's clock."""
    with Environment(clock=twin.clock).run(twin.open) as log:
        log.patience_s = 0.0
        yield log


def _writer(twin: TwinLog, log: Log, name: str, partition: int) -> Writer:
    return Environment(clock=twin.clock).run(Writer, log, name, partitions=[partition])


def _went_on(twin: TwinLog, log: Log, *, commits: int = 1, metadata: str = "") -> tuple[Writer, Writer]:
    """Return two writers: one's commit is lost, and the other has committed behind it, within its second."""
    a, b = _writer(twin, log, "a", 0), _writer(twin, log, "b", 1)
    a.commit()
    b.put(key_in(log, 1), b"precious")
    last = b.commit().offset
    _lose(twin, last)
    for number in range(commits):
        assert a.commit({"text": metadata}).offset == last + 1 + number
    return a, b


def _accept(log: Log) -> None:
    accept_ledger_loss(log, reason="lost", operator="me")


def _refused(writer: Writer) -> None:
    """Check that the writer is refused: it had folded forfeited records, and the acceptance ended its epoch."""
    with pytest.raises((DataLoss, Fenced)):
        writer.commit()
    with suppress(StatelogError):
        writer.close()


# ---- it counts until it was compared


@pytest.mark.parametrize("is_idle", [False, True])
def test_what_nobody_has_compared_is_known_beyond_its_writer(tmp_path: Path, *, is_idle: bool) -> None:
    """An uncompared position is known beyond its writer, which would compare it at a read, and never reads."""
    twin = TwinLog()
    with _process(twin) as log:
        a, b = _went_on(twin, log)
        if not is_idle:
            a.close()
            b.close()
        with twin.open() as other, pytest.raises(AnchorMismatch):  # The commit behind the loss names the lost record.
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            recover(log)
        with pytest.raises(AnchorMismatch):
            _writer(twin, log, "b", 1)
        a.close()
        b.close()


def test_what_nobody_has_compared_is_known_when_the_window_has_let_go_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An uncompared position is known beyond the window: one second has more commits than records are cached."""
    monkeypatch.setattr(following, "_WINDOW_BYTES", 1 << 20)
    twin = TwinLog()
    with _process(twin) as log:
        a, b = _went_on(twin, log, commits=12, metadata="x" * 400_000)
        assert log.history.commits(a.position - 13, a.position) is None
        a.close()
        b.close()
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_what_a_writer_is_told_late_is_what_was_read() -> None:
    """A commit that was lost before its late result was read raises, although another's result came first."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        a.put(key_in(log, 0), b"precious")
        pending = a.confirm_async(a.persist().result())
        assert pending.wait(1.0)
        _lose(twin, log.ledger.end() - 1)
        b.commit()
        with pytest.raises(DataLoss):
            pending.result()


def test_what_a_feed_has_not_read_again_it_has_not_compared() -> None:
    """A feed that has not read again has not compared: nothing queries it while others go on behind the loss."""
    twin = TwinLog()
    environment = Environment(clock=twin.clock)
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        feed = CommitFeed(log, environment.run(plan_changes, log, AtPosition(0)), None, RecoverySettings(), environment)
        last = a.commit().offset
        feed.commits()
        _lose(twin, last)
        b.commit()
        feed.commits(last + 1)
        feed.close()
        with twin.open() as other, pytest.raises(AnchorMismatch):
            Writer(other, "c", partitions=[2])  # The commit behind the loss names the lost record.
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_writer_answers_for_what_another_one_of_its_log_was_told() -> None:
    """A writer raises for the lost commit of a closed one of its log, at a position that it has read."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        with _writer(twin, log, "b", 1) as b:
            last = b.commit({"text": "x" * 4_500_000}).offset
        _lose(twin, last)
        twin.now_s += COMPARE_S
        with pytest.raises(DataLoss):
            a.commit()
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_proof_of_a_loss_outlives_the_truncation_of_what_was_lost(tmp_path: Path) -> None:
    """A proof of a loss outlives the truncation of the lost record: a reader has missed it.

    Rounds have truncated past it since, which proves nothing by itself.
    """
    twin = TwinLog()
    with _process(twin) as log:
        with _writer(twin, log, "b", 1) as b:
            b.put(key_in(log, 1), b"precious")
            last = b.commit().offset
        _lose(twin, last, strange=2)
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            log.history.read_to(log.position)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            for _ in range(4):
                c.commit()
                twin.environment.run(run_round, other, settings_for(tmp_path))
            assert other.ledger.range().start > last
        for _ in range(2):
            with pytest.raises(AnchorMismatch):
                recover(log)
        _accept(log)
        recover(log)


def test_a_proof_outlives_a_truncation_that_says_nothing_of_a_newer_place(tmp_path: Path) -> None:
    """A proof outlives a truncation that says nothing of a newer position, which was truncated and never missed."""
    twin, middle = TwinLog(), ORIGIN
    with _process(twin) as log:
        with _writer(twin, log, "b", 1) as b:
            last = b.commit().offset
        _lose(twin, last)
        with pytest.raises(AnchorMismatch):
            recover(log)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            for number in range(610):
                c.commit()
                if number == 300:
                    middle = c.place
                if number >= 600:
                    twin.environment.run(run_round, other, settings_for(tmp_path))
            assert other.ledger.range().start > last + 310
            newest = c.place
        for place in (middle, newest, ORIGIN):
            with pytest.raises(AnchorMismatch):
                recover(log, at_least=place)


def test_what_was_compared_half_a_second_ago_is_compared_again_by_who_opens_or_reads() -> None:
    """An opener or reader repeats a comparison of half a second ago: its answer must be younger than its query."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        last = a.commit().offset
        twin.now_s += COMPARE_S
        a.commit()  # This commit reads `last` once more.
        _lose(twin, last, strange=2)
        twin.now_s += COMPARE_S / 2
        log.history.read_to(log.position)
        for _ in range(2):
            with pytest.raises(AnchorMismatch):
                log.evidence.check_ledger()


@pytest.mark.parametrize("is_missed", [False, True])
def test_an_open_that_goes_by_a_look_of_others_settles_nothing(tmp_path: Path, *, is_missed: bool) -> None:
    """An Open that relies on another client's check resolves nothing.

    It believes a check from before the loss, as it may within the second, or not, if a client has missed the record.
    """
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        a.put(key_in(log, 0), b"v")
        a.commit()
        with twin.open() as other:
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += COMPARE_S
        last = a.commit().offset  # Its check finds it.
        _lose(twin, last)
        twin.now_s += COMPARE_S / 8
        b.commit()
        if is_missed:
            with pytest.raises(AnchorMismatch):
                log.history.read()
        with suppress(AnchorMismatch):
            _writer(twin, log, "d", 2).close()
            assert not is_missed
        with twin.open() as other, pytest.raises(AnchorMismatch):
            Writer(other, "c", partitions=[2])  # The commit behind the loss names the lost record.
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_proof_that_comes_while_others_are_compared_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that comes during a comparison stays: another thread's reader misses a record that was just compared."""
    twin = TwinLog()
    expect = History.expect
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        a.put(key_in(log, 0), b"precious")
        last = a.commit().offset

        def late(*args: Any) -> None:
            monkeypatch.undo()
            _lose(twin, last)
            b.commit()
            twin.now_s += COMPARE_S
            with pytest.raises(AnchorMismatch):
                log.history.read()
            expect(*args)

        monkeypatch.setattr(History, "expect", late)
        with suppress(AnchorMismatch):
            recover(log)
        with twin.open() as other, pytest.raises(AnchorMismatch):
            Writer(other, "c", partitions=[2])  # The commit behind the loss names the lost record.
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_an_answer_that_is_older_than_a_refusal_ends_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer older than a refusal ends no comparison: a lagging broker reports the old beginning of the ledger."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        a.commit()
        twin.now_s += COMPARE_S
        twin.cluster.truncate("log.ledger", 0, a.position - 1)
        lagging = {0: OffsetRange(0, a.position)}

        def late(*_: Any, **__: Any) -> dict[int, OffsetRange]:
            return lagging

        monkeypatch.setattr(MemoryKafka, "offsets", late)
        with pytest.raises(BrokerUnavailable):
            log.history.read()


# ---- an accepted loss raises no alarm


def test_a_writer_of_before_the_acceptance_is_refused_and_alarms_nobody_else() -> None:
    """A writer from before the acceptance is refused, and no other client raises: it had folded forfeited records."""
    twin = TwinLog()
    with _process(twin) as log:
        a = _writer(twin, log, "a", 0)
        last = a.commit().offset
        _lose(twin, last)
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            recover(log)
        _accept(log)
        twin.now_s += COMPARE_S
        _refused(a)
        recover(log)
        _writer(twin, log, "a", 0).close()


def test_a_fold_of_before_the_acceptance_is_refused_and_alarms_nobody_else() -> None:
    """A fold from before the acceptance is refused, and no other client raises.

    The log was opened behind it, and knows of no loss.
    """
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        last = a.commit().offset
        with log.replay(None, log.ledger.end()) as follower:
            kept = follower.folded
        _lose(twin, last)
        twin.now_s += COMPARE_S
        _accept(log)
    with _process(twin) as log:
        with log.replay(kept) as stale, pytest.raises(AnchorMismatch):
            stale.fold_to(log.ledger.end())
        recover(log)
        _writer(twin, log, "a", 0).close()


def test_what_another_process_accepted_is_accepted_here() -> None:
    """Another process's acceptance counts here, though this one had raised before and is not opened again."""
    twin = TwinLog()
    with _process(twin) as log:
        with _writer(twin, log, "a", 0) as a:
            last = a.commit().offset
            _lose(twin, last)
            a.put(key_in(log, 0), b"names what was lost")
            a.commit()
        with pytest.raises(AnchorMismatch):
            recover(log)
        with _process(twin) as other:
            _accept(other)
        twin.now_s += COMPARE_S
        recover(log)
        _writer(twin, log, "a", 0).close()


def test_a_long_accepted_loss_is_read_over_in_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long accepted loss is read over in few reads, not in some for each of its records."""
    twin = TwinLog()
    with _process(twin) as log:
        a = _writer(twin, log, "a", 0)
        first = a.commit().offset
        for _ in range(300):
            a.commit()
        with twin.open() as other:
            twin.environment.run(run_round, other, settings_for(tmp_path))
        _lose(twin, first + 1, strange=301)
        with _process(twin) as other:
            _accept(other)
        twin.now_s += COMPARE_S
        _refused(a)
        reads, read = list[object](), MemoryReader.read

        def counted(*args: Any, **kwargs: Any) -> Any:
            reads.append(args)
            return read(*args, **kwargs)

        monkeypatch.setattr(MemoryReader, "read", counted)
        recover(log)
        assert len(reads) < 20
