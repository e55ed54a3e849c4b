"""A ledger that lost acknowledged records and grew again behind an unchanged id: it acknowledges no commit."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import AnchorMismatch, CommitRefused, DataLoss, NotFound, OffsetGone
from statelog.history import COMPARE_S
from statelog.kafka.port import OffsetRange
from statelog.log import Log, LogOptions, accept_data_loss, accept_ledger_loss
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading import AtPosition, plan_changes
from statelog.recovery import Cursor, recover
from statelog.recovery.cursor import Applied
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.ledger.records import LossRange
from statelog.spark.stream_planner import CommitWindow
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Fate, SendAttempt
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, key_in, settings_for, where_at


def append_strange(twin: TwinLog, count: int) -> None:
    """Append records of a process that knows nothing of the loss."""
    write_all(MemoryKafka(cluster=twin.cluster), "log.ledger", 0, [b"somebody's"] * count)


def _opened(twin: TwinLog) -> Log:
    """Open the log as a process on the twin's clock does."""
    return Environment(clock=twin.clock).run(twin.open)


@pytest.mark.parametrize("others", [1, 2, 5])
def test_a_living_writer_is_not_told_committed(others: int) -> None:
    """A living writer gets no acknowledgement: its last commit is lost, others have written since.

    Its next one must not count for it alone.
    """
    twin = TwinLog()
    with _opened(twin) as log, Environment(clock=twin.clock).run(Writer, log, "a", partitions=[0, 1]) as a:
        a.put(key_in(log, 0), b"1")
        last = a.commit(checkpoint_id=1).offset
        twin.cluster.lose_tail("log.ledger", 0, last)
        for i in range(others):
            with twin.open() as other, Writer(other, f"c{i}", partitions=[2]):
                pass
        twin.now_s += COMPARE_S
        a.put(key_in(log, 0), b"2")
        with pytest.raises(DataLoss):
            a.commit(checkpoint_id=2)
        a.close()
        with twin.open() as other, pytest.raises(AnchorMismatch):
            other.commits()  # The chunk of the failed commit names the ledger position that its writer had read.


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("commits", [1, 3])
def test_a_writer_that_went_on_right_where_its_fold_ends_learns_of_the_loss_within_a_second(
    commits: int, *, shared: bool
) -> None:
    """A writer that goes on exactly at its fold's end learns of the loss within a second.

    Another process has filled the lost offsets, to the record. The next commits need no read, and are the same when the
    last of them is compared; the earlier acknowledged ones are not.
    """
    twin = TwinLog()
    with ExitStack() as stack:
        log = stack.enter_context(_opened(twin))
        a, b = (
            stack.enter_context(Environment(clock=twin.clock).run(Writer, log, name, partitions=[partition]))
            for partition, name in enumerate("ab")
        )
        b.commit()
        last = [a.commit().offset for _ in range(commits)][-1]
        twin.cluster.lose_tail("log.ledger", 0, last)
        with twin.open() as other, Writer(other, "c", partitions=[2]):
            pass
        assert a.commit().offset == last + 1
        twin.now_s += COMPARE_S
        if shared:  # Another writer had folded none of it, and learns by the link in the first one's commit.
            with pytest.raises(DataLoss):
                b.commit()
        with pytest.raises(DataLoss):
            a.commit()


@pytest.mark.parametrize("goes_on", ["writer", "follower"])
@pytest.mark.parametrize("others", [1, 3])
def test_a_process_forgets_no_commit_that_one_of_its_writers_was_told_of(others: int, goes_on: str) -> None:
    """A process forgets no acknowledged commit of its writers: every reader of the same log raises once it is lost.

    The writer is closed, and others write on, also one of this process, or the process follows.
    """
    twin = TwinLog()
    environment = Environment(clock=twin.clock)
    with ExitStack() as stack:
        log = stack.enter_context(_opened(twin))
        a, b = (
            stack.enter_context(environment.run(Writer, log, name, partitions=[partition]))
            for partition, name in enumerate("ab")
        )
        follower = stack.enter_context(environment.run(recover(log).follow))
        last = a.commit().offset
        a.close()
        twin.cluster.lose_tail("log.ledger", 0, last)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            for _ in range(others - 1):
                c.commit()
        twin.now_s += COMPARE_S
        if goes_on == "writer":
            with pytest.raises(AnchorMismatch):
                b.commit()
        else:
            follower.take(0)
        with pytest.raises(AnchorMismatch):
            recover(log)


@contextmanager
def _bereft(twin: TwinLog, *, lost: int) -> Generator[tuple[Log, Writer, int]]:
    """Yield a log, its writer, and the offset of the second of its two commits; the newest `lost` records are lost."""
    with _opened(twin) as log, Environment(clock=twin.clock).run(Writer, log, "a", partitions=[0]) as a:
        a.commit()
        last = a.commit().offset
        twin.cluster.lose_tail("log.ledger", 0, last + 1 - lost)
        yield log, a, last


def test_what_a_process_noted_is_not_joined_to_what_a_snapshot_above_the_loss_goes_on_with(tmp_path: Path) -> None:
    """An opener from a snapshot above the loss raises, and so does an idle writer of the same log."""
    twin = TwinLog()
    environment = Environment(clock=twin.clock)
    with _opened(twin) as log, environment.run(Writer, log, "a", partitions=[0]) as a:
        a.commit()
        twin.now_s += COMPARE_S
        last = a.commit().offset
        twin.cluster.lose_tail("log.ledger", 0, last - 1)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
            assert log.manifests.newest() is not None
            c.commit()
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            environment.run(Writer, log, "b", partitions=[1])
        with pytest.raises(AnchorMismatch):
            a.commit()


def test_what_a_process_noted_is_not_joined_to_what_it_appended_behind_the_loss(tmp_path: Path) -> None:
    """A commit that is refused for the loss is in the ledger all the same, and every round and opener raises."""
    twin = TwinLog()
    environment = Environment(clock=twin.clock)
    with _bereft(twin, lost=2) as (log, a, last):
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.commit()
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            a.commit()
        with twin.open() as other, pytest.raises(AnchorMismatch):
            twin.environment.run(run_round, other, settings_for(tmp_path))
        assert log.ledger.end() == last + 2
        with pytest.raises(AnchorMismatch):
            environment.run(Writer, log, "b", partitions=[1])


def test_a_loss_that_rounds_truncated_up_to_the_writers_place_is_no_commits_ground(tmp_path: Path) -> None:
    """A position up to which rounds truncated a loss lets no client commit or go on.

    Nothing is left to compare, but the snapshot that is retained of it knows.
    """
    twin = TwinLog()
    with _bereft(twin, lost=1) as (log, a, last):
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            twin.environment.run(run_round, other, settings_for(tmp_path))
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
            assert log.ledger.range().start == a.position == last + 1
            with pytest.raises(AnchorMismatch):
                recover(other, at_least=a.place).to_dict()
            with pytest.raises(AnchorMismatch):
                plan_changes(other, AtPosition(a.position), seen=[a.place])
            with pytest.raises(AnchorMismatch):
                CommitWindow(other, other.manifests.at(a.position), a.place)
        with pytest.raises(AnchorMismatch):
            Writer(log, "b", partitions=[1])
        twin.now_s += COMPARE_S
        with pytest.raises(CommitRefused):
            a.commit()


def test_who_follows_is_told_where_the_ledger_was_truncated_up_to_its_place(tmp_path: Path) -> None:
    """A follower learns of the loss by a snapshot where the ledger was truncated up to its position.

    Its query was paused, and its lease has ended.
    """
    twin = TwinLog()
    with _opened(twin) as log, Writer(log, "a", partitions=[0]) as a:
        window = CommitWindow(log, None, ORIGIN)
        last = [a.commit().offset for _ in range(2)][-1]
        window.read_ahead(window.ledger_end(), lambda: False)
        assert [commit.position for commit in window.commits] == [last, last + 1]
        twin.cluster.lose_tail("log.ledger", 0, last)
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            for _ in range(2):
                twin.environment.run(run_round, other, settings_for(tmp_path))
                c.commit()
        assert log.ledger.range().start == last + 1
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            window.read_ahead(window.ledger_end(), lambda: False)


def test_a_loss_below_what_was_acknowledged_since_shows_though_the_ledger_was_truncated(tmp_path: Path) -> None:
    """A loss below an acknowledged commit shows though the ledger was truncated.

    The commit that landed exactly at the end of its writer's fold is there. The records below it are compared as far as
    they exist, and with the snapshot of the ledger's beginning.
    """
    twin = TwinLog()
    with _bereft(twin, lost=1) as (log, a, last):
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            twin.environment.run(run_round, other, settings_for(tmp_path))
            assert a.commit().offset == last + 1
            with pytest.raises(AnchorMismatch):
                c.commit()
            log.kafka.delete_records(log.ledger_topic, {0: last})  # As Kafka does, where it deletes by age.
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            a.commit()


def test_a_loss_that_was_truncated_up_to_the_newest_snapshot_shows_in_that(tmp_path: Path) -> None:
    """A loss that was truncated up to the newest snapshot shows in it, for a living writer's position and a log's.

    Another writer opens through that log.
    """
    twin = TwinLog()
    environment = Environment(clock=twin.clock)
    with _bereft(twin, lost=2) as (log, a, last):
        with twin.open() as other, Writer(other, "c", partitions=[2]) as c:
            c.commit()
            twin.environment.run(run_round, other, settings_for(tmp_path))
        log.kafka.delete_records(log.ledger_topic, {0: last + 1})  # As Kafka does, where it deletes by age.
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            environment.run(Writer, log, "b", partitions=[1])
        with pytest.raises(AnchorMismatch):
            a.commit()


def test_what_is_truncated_since_it_was_acknowledged_proves_nothing(tmp_path: Path) -> None:
    """Truncation since the acknowledgement proves nothing: a writer that paused goes on from the remaining records."""
    twin = TwinLog()
    with _opened(twin) as log, Environment(clock=twin.clock).run(Writer, log, "a") as a:
        offset = 0
        for i in range(6):
            a.put(key_in(log, 0), b"%d" % i)
            offset = a.commit().offset
            if i in (2, 3, 4):
                twin.environment.run(run_round, log, settings_for(tmp_path))
        assert 0 < log.ledger.range().start < offset
        twin.now_s += COMPARE_S
        assert a.commit().offset == offset + 1


def test_what_a_writer_went_on_behind_within_the_second_others_of_its_log_are_told() -> None:
    """Other clients of a writer's log learn within the second what it went on behind.

    Its next commit lies where the ledger grew again to: it learns later, and readers at once.
    """
    twin = TwinLog()
    with twin.open() as log, Writer(log, "a", partitions=[0]) as a:
        last = a.commit().offset
        twin.cluster.lose_tail("log.ledger", 0, last)
        append_strange(twin, 1)
        assert a.commit().offset == last + 1
        with pytest.raises(AnchorMismatch):
            recover(log)
        with pytest.raises(AnchorMismatch):
            Writer(log, "b", partitions=[1])
        accept_ledger_loss(log, reason="lost", operator="me")
        recover(log)
        Writer(log, "b", partitions=[1]).close()


def test_a_writer_that_commits_within_its_second_takes_back_no_proof_of_a_loss() -> None:
    """A commit within its second takes back no proof of a loss: a reader of its log has found the loss."""
    twin = TwinLog()
    with twin.open() as log:
        with Writer(log, "a", partitions=[0]) as a:
            last = a.commit().offset
            twin.cluster.lose_tail("log.ledger", 0, last)
            append_strange(twin, 1)
            with pytest.raises(AnchorMismatch):
                recover(log)
            with suppress(DataLoss):
                a.commit()
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_what_one_reader_was_told_is_gone_others_of_its_log_are_told_as_well() -> None:
    """Other readers of the same log raise as well once one reader alone misses a record."""
    twin = TwinLog()
    twin.write({b"k": b"v"})
    with _opened(twin) as log:
        log.history.read()
        twin.cluster.lose_tail("log.ledger", 0, log.position - 1)
        append_strange(twin, 1)
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            log.history.read_to(log.ledger.end())
        with pytest.raises(AnchorMismatch):
            recover(log)


def test_a_follower_that_stands_at_the_end_compares_it_once_its_look_is_old() -> None:
    """A follower at the end compares it once its check is old.

    The age is by the clock of its environment, as for a worker of Spark that cached its epoch.
    """
    twin = TwinLog()
    twin.write({b"k": b"v"})
    with _opened(twin) as log:
        log.history.read()
        twin.cluster.lose_tail("log.ledger", 0, log.position - 1)
        append_strange(twin, 1)
        log.history.read_to(log.ledger.end())
        twin.now_s += COMPARE_S
        with pytest.raises(AnchorMismatch):
            log.history.read_to(log.ledger.end())


@pytest.mark.parametrize("regrown", [3, 9])
def test_no_writer_opens_below_what_a_snapshot_holds(tmp_path: Path, regrown: int) -> None:
    """No writer opens below a snapshot's contents, before it writes anything: readers would refuse its commits."""
    twin = TwinLog()
    for i in range(6):
        twin.write({b"k%d" % i: b"v"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
        end = log.kafka.offsets("log.ledger", [0])[0].end
        twin.cluster.lose_tail("log.ledger", 0, end - 3)
        append_strange(twin, regrown)
        with pytest.raises(AnchorMismatch):
            Writer(log, "writer")


@pytest.mark.usefixtures("busy_ledger")
def test_no_writer_opens_on_data_that_a_snapshot_was_not_built_on(tmp_path: Path) -> None:
    """An opening writer compares the data anchors of the partitions that it takes, and no others."""
    twin = TwinLog()
    for i in range(40):
        twin.write({b"k%d" % i: b"v"})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
        end = log.data_offsets()[0].end
        twin.cluster.overwrite("log", 0, end - 1, b"somebody's")
        Writer(log, "x", partitions=[1]).close()
        with pytest.raises(AnchorMismatch):
            Writer(log, "writer")
        accept_data_loss(log, [LossRange(0, end - 1, end)], reason="overwritten", operator="me")
        Writer(log, "writer").close()


class OldAnswers(MemoryKafka):
    """A Kafka port that answers one query for the ledger's end with an old one."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster=cluster)
        self.questions = 0
        self.lie_at: int | None = None
        self.old_end = 0

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return the truth, but for one query."""
        there = super().offsets(topic, partitions, at_least=at_least)
        if not topic.endswith(".ledger"):
            return there
        self.questions += 1
        return {0: OffsetRange(there[0].start, self.old_end)} if self.questions == self.lie_at else there


class Unanswered:
    """A fault that loses the next ledger record's answer."""

    is_on = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of a record."""
        if self.is_on and attempt.topic.endswith(".ledger"):
            self.is_on = False
            return Fate.APPEND_UNANSWERED
        return Fate.DELIVER


@pytest.mark.parametrize("lie_at", range(1, 5))
def test_an_old_answer_hides_no_commit_from_settling(lie_at: int) -> None:
    """The outcome is read up to the resolving Open itself: a commit before it is reported as committed."""
    faults = Unanswered()
    kafka = OldAnswers(MemoryCluster(faults=faults))
    log = Log.create(
        "log",
        where_at(kafka, MemoryStore(MemoryDisk(lambda: 0.0), "log")),
        LogOptions(partitions=1),
    )
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
        writer.put(b"a", b"2")
        faults.is_on = True
        kafka.questions, kafka.lie_at, kafka.old_end = 0, lie_at, kafka.cluster.log("log.ledger", 0).end
        offset = writer.commit(checkpoint_id=2).offset
        kafka.lie_at = None
        last = log.commits()["w"]

        assert (last.checkpoint.id, last.offset) == (2, offset)


def test_who_followed_what_a_snapshot_voids_does_not_go_on_behind_the_restart(tmp_path: Path) -> None:
    """A client that followed commits which a snapshot voids does not go on behind the Restart.

    The snapshot knows an Open that the ledger lost. The owner that it fenced goes on, and so does its follower; then a
    person accepts the loss. The records are the same, and the commits are void: their position is none of the log.
    """
    twin = TwinLog()
    with twin.open() as log, Writer(log, "a", partitions=[0]) as a, log.replay() as follower:
        a.put(key_in(log, 0), b"1")
        counts_at = a.commit().offset + 1
        follower.fold_to(log.ledger.end())
        with twin.open() as other, Writer(other, "c", partitions=[0]):
            twin.environment.run(run_round, other, settings_for(tmp_path))
        twin.cluster.lose_tail("log.ledger", 0, counts_at)
        for value in (b"2", b"3"):
            a.put(key_in(log, 0), value)
            a.commit()
        assert len(follower.read_to(log.ledger.end())) == 2
        place, kept = follower.place, follower.folded
        with twin.open() as other:
            assert accept_ledger_loss(other, reason="r", operator="o") == place.position
    snapshot_at = counts_at + 1
    with twin.open() as log:
        assert list(recover(log, at_least=snapshot_at).to_dict().values()) == [b"1"]
        for at_least in (place, place.position, snapshot_at + 1):
            with pytest.raises(OffsetGone, match="commits that were followed"):
                recover(log, at_least=at_least)
        cursor = Cursor(identity=log.descriptor.identity, applied=Applied.complete(place))
        with pytest.raises(OffsetGone, match="commits that were followed"):
            recover(log, resume=cursor)
        with pytest.raises(NotFound, match="does not hold changes"):
            plan_changes(log, AtPosition(place.position))
        with log.replay(kept) as again, pytest.raises(OffsetGone, match="commits that were followed"):
            again.fold_to(log.ledger.end())
        with pytest.raises(OffsetGone, match="commits that were followed"):
            window = CommitWindow(log, log.manifests.newest(), place)
            window.read_ahead(window.ledger_end(), lambda: False)
        window = CommitWindow(log, log.manifests.newest(), Place(snapshot_at))
        window.read_ahead(window.ledger_end(), lambda: False)
