"""What one process knows of a ledger that lost records and grew again: whoever of its log was told of them, and is
closed, idle or behind since. It is compared until somebody has, and is an alarm until a person has accepted the loss.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import AnchorMismatch, DataLoss, OffsetGone, StatelogError
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading import AtPosition, plan_changes
from statelog.recovery import RecoverySettings, recover
from statelog.recovery.changes import CommitFeed
from statelog.schemas.ledger.records import Mark
from statelog.storage.kafka import OffsetRange
from statelog.storage.ledger_client import LOOK_AGAIN_S
from statelog.storage.log.evidence import check_ledger
from statelog.storage.log.log import Log
from statelog.storage.log.loss import accept_ledger_loss
from statelog.testing.kafka import MemoryKafka, MemoryReader
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, key_in, settings_for


def _lose(twin: TwinLog, offset: int, *, strange: int = 1) -> None:
    """The ledger loses this record and all behind it, and grows again, by somebody who knows nothing of that."""
    twin.cluster.lose_tail("log.ledger", 0, offset)
    write_all(MemoryKafka(cluster=twin.cluster), "log.ledger", 0, [b"somebody's"] * strange)


@contextmanager
def _process(twin: TwinLog) -> Generator[Log]:
    """A log of a process that goes by the twin's clock."""
    with Environment(clock=twin.clock).run(twin.open) as log:
        log.patience_s = 0.0
        yield log


def _writer(twin: TwinLog, log: Log, name: str, partition: int) -> Writer:
    return Environment(clock=twin.clock).run(Writer, log, name, partitions=[partition])


def _went_on(twin: TwinLog, log: Log, *, commits: int = 1, metadata: str = "") -> tuple[Writer, Writer]:
    """Two writers. What one committed is lost, and the other has committed behind that, within its second."""
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
    """It had folded what was given up."""
    with pytest.raises(DataLoss):
        writer.commit()
    with suppress(StatelogError):
        writer.close()


# ---- it is compared until somebody has


@pytest.mark.parametrize("is_idle", [False, True])
def test_what_nobody_has_compared_is_known_beyond_its_writer_and_below_a_snapshot(
    tmp_path: Path, *, is_idle: bool
) -> None:
    """The one that went on would compare it when it reads. It never does; and who recovers starts above it."""
    twin = TwinLog()
    with _process(twin) as log:
        a, b = _went_on(twin, log)
        if not is_idle:
            a.close()
            b.close()
        with twin.open() as other:
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += LOOK_AGAIN_S
        with pytest.raises(AnchorMismatch):
            recover(log)
        with pytest.raises(AnchorMismatch):
            _writer(twin, log, "b", 1)
        a.close()
        b.close()


def test_what_nobody_has_compared_is_known_when_the_tape_has_let_go_of_it() -> None:
    """More was committed since, in the same second, than is kept of the records themselves."""
    twin = TwinLog()
    with _process(twin) as log:
        a, b = _went_on(twin, log, commits=12, metadata="x" * 400_000)
        assert log.ledger_tape.at(a.position - 13) is None
        a.close()
        b.close()
        with pytest.raises(AnchorMismatch):
            recover(log)


@pytest.mark.parametrize("is_taped", [False, True])
def test_what_a_writer_is_told_late_is_noted_below_what_another_one_was_told(tmp_path: Path, *, is_taped: bool) -> None:
    """Its commit was acknowledged and lost; another one's, behind it, was told first."""
    twin = TwinLog()
    metadata = {"text": "" if is_taped else "x" * 400_000}
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        a.put(key_in(log, 0), b"precious")
        pending = a.confirm_async(a.persist().result())
        assert pending.wait(1.0)
        _lose(twin, log.ledger.end() - 1)
        b.commit(metadata)
        pending.result()
        for _ in range(0 if is_taped else 12):
            b.commit(metadata)
        if is_taped:
            with twin.open() as other:
                twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += LOOK_AGAIN_S
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_what_a_feed_has_not_read_again_it_has_not_compared(tmp_path: Path) -> None:
    """It is asked for nothing new while another one goes on behind the loss."""
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
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += LOOK_AGAIN_S
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_writer_answers_for_no_record_that_it_has_not_folded() -> None:
    """It has read on past the loss of a commit that is too large to be handed on, and found somebody's there."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        with _writer(twin, log, "b", 1) as b:
            last = b.commit({"text": "x" * 4_500_000}).offset
        _lose(twin, last)
        twin.now_s += LOOK_AGAIN_S
        for _ in range(2):
            a.commit()
            twin.now_s += LOOK_AGAIN_S
        assert not log.ledger_tape.lost
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_what_a_writer_has_compared_is_compared_by_nobody_else() -> None:
    """Its place of a second ago is not kept beside the one of now."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        for _ in range(50):
            a.commit()
        assert len(log.places) > 50
        twin.now_s += LOOK_AGAIN_S
        for _ in range(2):
            a.commit()
        assert len(log.places) < 5


# ---- a proof stays one


def test_a_proof_of_a_loss_outlives_the_truncation_of_what_was_lost(tmp_path: Path) -> None:
    """A follower was told that it is gone. Rounds have truncated past it since, which proves nothing by itself."""
    twin = TwinLog()
    with _process(twin) as log:
        with _writer(twin, log, "b", 1) as b:
            b.put(key_in(log, 1), b"precious")
            last = b.commit().offset
        with Environment(clock=twin.clock).run(log.ledger.newest_client) as follower:
            follower.fold_end()
            _lose(twin, last, strange=2)
            twin.now_s += LOOK_AGAIN_S
            with pytest.raises(AnchorMismatch):
                follower.fold_end()
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
    """Both are truncated, far from each other; the newer one was never missed."""
    twin = TwinLog()
    with _process(twin) as log:
        with _writer(twin, log, "b", 1) as b:
            last = b.commit().offset
        with log.ledger.newest_client() as follower:
            follower.fold_end()
            _lose(twin, last)
            log.ledger_tape.miss([one for one in [follower.last] if one is not None])
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            for number in range(610):
                c.commit()
                if number == 300:
                    log.saw(c.place)
                if number >= 600:
                    twin.environment.run(run_round, other, settings_for(tmp_path))
            assert other.ledger.range().start > last + 310
            log.saw(c.place)
        for _ in range(2):
            with pytest.raises(AnchorMismatch):
                recover(log)


def test_who_compared_it_half_a_second_ago_compares_it_again_once_another_one_missed_it() -> None:
    """What was there then is no answer to a proof that is younger."""
    twin = TwinLog()
    run = Environment(clock=twin.clock).run
    with (
        _process(twin) as log,
        _writer(twin, log, "a", 0) as a,
        run(log.ledger.newest_client) as compared,
        run(log.ledger.newest_client) as other,
    ):
        last = a.commit().offset
        compared.fold_end()
        other.fold_end()
        twin.now_s += LOOK_AGAIN_S
        a.commit()
        compared.fold_end()  # Which reads `last` once more.
        _lose(twin, last, strange=2)
        twin.now_s += LOOK_AGAIN_S / 2
        with pytest.raises(AnchorMismatch):
            other.fold_end()
        for _ in range(2):
            with pytest.raises(AnchorMismatch):
                check_ledger(log, compared)


def test_who_reads_a_record_before_its_writer_is_told_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report comes between the read and what is made of it."""
    twin = TwinLog()
    with _process(twin) as log, log.ledger.newest_client() as follower:
        follower.fold_end()
        tape, value = log.ledger_tape, b"of this process"
        told, looked = tape.sending(Mark(digest=bytes(8)), value, twin.now_s), tape.looked
        (offset,) = write_all(MemoryKafka(cluster=twin.cluster), "log.ledger", 0, [value])

        def late(*args: Any, **kwargs: Any) -> None:
            told(offset)
            looked(*args, **kwargs)

        monkeypatch.setattr(tape, "looked", late)
        follower.fold_end()
        assert tape.at(offset) is not None
        assert not tape.lost


@pytest.mark.parametrize("is_missed", [False, True])
def test_an_open_that_goes_by_a_look_of_others_settles_nothing(tmp_path: Path, *, is_missed: bool) -> None:
    """It believes a look of before the loss, as it may within the second, or not, if somebody has missed the record."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, _writer(twin, log, "b", 1) as b:
        a.put(key_in(log, 0), b"v")
        a.commit()
        with twin.open() as other:
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += LOOK_AGAIN_S
        last = a.commit().offset  # Whose look finds it.
        with Environment(clock=twin.clock).run(log.ledger.newest_client) as follower:
            follower.fold_end()
            _lose(twin, last)
            twin.now_s += LOOK_AGAIN_S / 8
            b.commit()
            if is_missed:
                with pytest.raises(AnchorMismatch):
                    follower.fold_end()
        with suppress(AnchorMismatch):
            _writer(twin, log, "d", 2).close()
            assert not is_missed
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.put(key_in(other, 2), b"c")
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.now_s += LOOK_AGAIN_S
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_proof_that_comes_while_others_are_settled_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower, of another thread, misses what was compared just before."""
    twin = TwinLog()
    saw, run = Log.saw, Environment(clock=twin.clock).run
    with (
        _process(twin) as log,
        _writer(twin, log, "a", 0) as a,
        _writer(twin, log, "b", 1) as b,
        run(log.ledger.newest_client) as follower,
    ):
        a.put(key_in(log, 0), b"precious")
        last = a.commit().offset
        follower.fold_end()

        def late(*args: Any) -> None:
            monkeypatch.undo()
            _lose(twin, last)
            b.commit()
            twin.now_s += LOOK_AGAIN_S
            with pytest.raises(AnchorMismatch):
                follower.fold_end()
            saw(*args)

        monkeypatch.setattr(Log, "saw", late)
        recover(log)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.put(key_in(other, 2), b"c")
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_who_reads_what_another_one_is_about_to_put_down_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer's client has read a record, then a follower has, and the writer's client is quicker to say so."""
    twin = TwinLog()
    with _process(twin) as log, Environment(clock=twin.clock).run(log.ledger.newest_client) as follower:
        follower.fold_end()
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.commit()
        tape, looked = log.ledger_tape, log.ledger_tape.looked

        def first(*found: Any, **counts: Any) -> None:
            def second(*args: Any, **kwargs: Any) -> None:
                monkeypatch.setattr(tape, "looked", looked)
                looked(*found, **counts)
                looked(*args, **kwargs)

            monkeypatch.setattr(tape, "looked", second)
            follower.fold_end()

        with Environment(clock=twin.clock).run(partial(log.ledger.client, shares=True)) as shares:
            monkeypatch.setattr(tape, "looked", first)
            shares.fold_end()
        assert tape.look is not None
        assert not tape.lost


def test_an_answer_that_is_older_than_a_refusal_ends_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lags says that the ledger begins where it did."""
    twin = TwinLog()
    run = Environment(clock=twin.clock).run
    with _process(twin) as log, _writer(twin, log, "a", 0) as a, run(log.ledger.newest_client) as client:
        places = [a.place]
        a.commit()
        client.fold_end()
        twin.now_s += LOOK_AGAIN_S
        twin.cluster.truncate("log.ledger", 0, a.position - 1)
        lagging = {0: OffsetRange(0, a.position)}

        def late(*_: Any, **__: Any) -> dict[int, OffsetRange]:
            return lagging

        monkeypatch.setattr(MemoryKafka, "offsets", late)
        with pytest.raises(OffsetGone):
            client.check(places)


# ---- what was accepted is no alarm


def test_a_writer_of_before_the_acceptance_is_refused_and_alarms_nobody_else() -> None:
    """It had folded what was given up, and says so once more."""
    twin = TwinLog()
    with _process(twin) as log:
        a = _writer(twin, log, "a", 0)
        last = a.commit().offset
        _lose(twin, last)
        twin.now_s += LOOK_AGAIN_S
        with pytest.raises(AnchorMismatch):
            recover(log)
        _accept(log)
        twin.now_s += LOOK_AGAIN_S
        _refused(a)
        recover(log)
        _writer(twin, log, "a", 0).close()
        assert not log.ledger_tape.lost


def test_a_fold_of_before_the_acceptance_is_refused_and_alarms_nobody_else() -> None:
    """Though the log was opened behind it, and knows of no loss."""
    twin = TwinLog()
    with _process(twin) as log, _writer(twin, log, "a", 0) as a:
        last = a.commit().offset
        with log.ledger.newest_client() as follower:
            follower.fold_end()
            kept = follower.folded
        _lose(twin, last)
        twin.now_s += LOOK_AGAIN_S
        _accept(log)
    with _process(twin) as log:
        with log.ledger.client(kept) as stale, pytest.raises(AnchorMismatch):
            stale.fold_end()
        recover(log)
        _writer(twin, log, "a", 0).close()


def test_what_another_process_accepted_is_accepted_here() -> None:
    """This one was told of the loss before, and is not opened anew."""
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
        twin.now_s += LOOK_AGAIN_S
        recover(log)
        _writer(twin, log, "a", 0).close()
        assert not log.ledger_tape.lost


def test_a_long_accepted_loss_is_read_over_in_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in some for each of its records."""
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
        twin.now_s += LOOK_AGAIN_S
        _refused(a)
        assert len(log.ledger_tape.lost) >= 300
        reads, read = list[object](), MemoryReader.read

        def counted(*args: Any, **kwargs: Any) -> Any:
            reads.append(args)
            return read(*args, **kwargs)

        monkeypatch.setattr(MemoryReader, "read", counted)
        recover(log)
        assert len(reads) < 20
