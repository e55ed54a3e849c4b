"""A ledger that lost its tail: the detection with and without a snapshot, and the way on that a person can take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import AnchorMismatch, BeyondEnd, ConfigError, DataLoss, Fenced, NotFound
from statelog.history import append_record
from statelog.kafka.port import OffsetRange
from statelog.log import Log, accept_ledger_loss
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, recover
from statelog.schemas.ledger.handle import NO_CHECKPOINT
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import Open
from statelog.schemas.snapshot.manifest import Manifest
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import TwinLog, impatient, settings_for, where_at
from tests.support.samples.chunks import chunk_of, rows_batch

COMMITS = 20


def written(partitions: int = 1) -> TwinLog:
    """Return a log with commits of one incarnation: the mark, the Open, and then one record a commit."""
    twin = TwinLog(partitions=partitions)
    with twin.open() as log, Writer(log, "w") as writer:
        for i in range(1, COMMITS + 1):
            writer.put(b"k%d" % i, b"v")
            writer.commit(checkpoint_id=i)
            twin.apply({b"k%d" % i: b"v"})
    return twin


def lose(twin: TwinLog, end: int) -> None:
    """Let the ledger end at `end`, as after an unclean election."""
    twin.cluster.lose_tail("log.ledger", 0, end)


OPENS: list[Callable[[Log, Path], object]] = [
    lambda log, _: Writer(log, "w").close(),
    lambda log, _: recover(log),
    lambda log, scratch: run_round(log, settings_for(scratch)),
]


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("entry", OPENS, ids=["writer", "recovery", "round"])
@pytest.mark.parametrize("end", [0, 1, 2, 11])
def test_a_lost_tail_is_loud_without_a_snapshot(end: int, entry: Callable[[Log, Path], object], tmp_path: Path) -> None:
    """A lost tail raises without a snapshot: the last chunk names a ledger position beyond its end."""
    twin = written()
    lose(twin, end)
    with impatient(twin) as log, pytest.raises(BeyondEnd):
        entry(log, tmp_path)


@pytest.mark.parametrize("entry", OPENS, ids=["writer", "recovery", "round"])
@pytest.mark.parametrize("stranger", [False, True])
@pytest.mark.parametrize("seen", [Place(9), Place(1, LastRecord.of(0, b"another mark"))], ids=["more", "another"])
def test_an_open_that_had_seen_another_ledger_is_loud(
    entry: Callable[[Log, Path], object], seen: Place, stranger: bool, tmp_path: Path
) -> None:
    """An Open whose opener had folded another ledger raises: it lost its tail, and perhaps grew again.

    Strangers prove nothing.
    """
    twin = TwinLog(partitions=1)
    with impatient(twin) as log:
        identity = log.descriptor.identity
        late = Open(
            writer="x",
            partitions=(0,),
            nonce=bytes(16),
            prior=-1,
            last=NO_CHECKPOINT,
            identity=replace(identity, ledger_topic_id="another") if stranger else identity,
            witness=seen,
        )
        append_record(log.kafka.producer(), log.ledger_topic, late)
        if stranger:
            entry(log, tmp_path)
        else:
            with pytest.raises(BeyondEnd if seen.last is None else AnchorMismatch):
                entry(log, tmp_path)


def test_a_forged_witness_says_nothing() -> None:
    """A forged witness says nothing: a client with rights on the data topic alone cannot report a lost ledger tail."""
    twin = written()
    forged = chunk_of(rows_batch([(0, 0, b"k", b"v")])).value
    write_all(MemoryKafka(cluster=twin.cluster), "log", 0, [forged])
    lose(twin, 10**6)
    with impatient(twin) as log:
        Writer(log, "w").close()


@pytest.mark.parametrize("end", [0, 1, 11])
@pytest.mark.parametrize("regrown", [0, 3, 40])
def test_the_newest_snapshot_replaces_what_the_ledger_lost(end: int, regrown: int, tmp_path: Path) -> None:
    """The newest snapshot holds all commits that the ledger lost: after the acceptance everything goes on from it."""
    twin = written()
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    old = Writer(twin.open(), "old")  # Only the acceptance fences it.
    lose(twin, end)
    write_all(MemoryKafka(cluster=twin.cluster), "log.ledger", 0, [b"somebody's"] * regrown)
    with impatient(twin) as log:
        for entry in OPENS:
            with pytest.raises(DataLoss):
                entry(log, tmp_path)
        accept_ledger_loss(log, reason="unclean election", operator="me")
        assert recover(log).to_dict() == twin.model
        with Writer(log, "w", expect=COMMITS) as writer:
            writer.put(b"new", b"v")
            writer.commit(checkpoint_id=COMMITS + 1)
            twin.apply({b"new": b"v"})
            assert isinstance(twin.environment.run(run_round, log, settings_for(tmp_path)), CompletedRound)
            writer.put(b"newer", b"v")
            writer.commit(checkpoint_id=COMMITS + 2)
            twin.apply({b"newer": b"v"})
        assert recover(log).to_dict() == twin.model
        with pytest.raises(ConfigError):
            accept_ledger_loss(log, reason="again", operator="me")
    old.put(b"zombie", b"v")
    with pytest.raises((Fenced, DataLoss)):
        old.commit(checkpoint_id=1)
    old.close()
    with impatient(twin) as log:
        assert recover(log).to_dict() == twin.model


@pytest.mark.usefixtures("busy_ledger")
def test_without_a_snapshot_what_is_left_is_the_history(tmp_path: Path) -> None:
    """Without a snapshot the rest is the history: the lost commits are reported missing, and the log goes on."""
    twin = written()
    lose(twin, 12)  # The mark, the Open and ten commits.
    with impatient(twin) as log:
        accept_ledger_loss(log, reason="unclean election", operator="me")
        left = {b"k%d" % i: b"v" for i in range(1, 11)}
        assert recover(log).to_dict() == left
        with Writer(log, "w", expect=10) as writer:
            writer.put(b"new", b"v")
            writer.commit(checkpoint_id=11)
        assert isinstance(twin.environment.run(run_round, log, settings_for(tmp_path)), CompletedRound)
        assert recover(log).to_dict() == {**left, b"new": b"v"}


def test_nobody_folds_over_what_was_lost(tmp_path: Path) -> None:
    """A state between an older snapshot and the loss is refused, instead of a wrong one."""
    twin = written()
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
        with Writer(log, "w") as writer:
            for i in range(COMMITS + 1, COMMITS + 6):
                writer.put(b"k%d" % i, b"v")
                writer.commit(checkpoint_id=i)
                twin.apply({b"k%d" % i: b"v"})
        twin.environment.run(run_round, log, settings_for(tmp_path))
    first, second = 22, 28
    lose(twin, first + 1)
    with impatient(twin) as log:
        accept_ledger_loss(log, reason="unclean election", operator="me")
        assert recover(log, at=AtPosition(second)).to_dict() == twin.model
        with pytest.raises((NotFound, DataLoss)):
            recover(log, at=AtPosition(first + 3))


def test_nothing_is_accepted_as_long_as_nothing_is_lost() -> None:
    """Nothing is accepted while nothing is lost: a hasty person does not fence the writers of a sound log."""
    twin = written()
    with impatient(twin) as log, pytest.raises(ConfigError, match="lost nothing"):
        accept_ledger_loss(log, reason="nerves", operator="me")


def test_a_snapshot_that_is_not_whole_does_not_replace_anything(tmp_path: Path) -> None:
    """An incomplete snapshot replaces nothing: no copy of the lost records would be left."""
    twin = written()
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path))
    lose(twin, 5)
    with impatient(twin) as log:
        log.store.delete(next(iter(twin.run_paths())))
        with pytest.raises(NotFound, match="run"):
            accept_ledger_loss(log, reason="unclean election", operator="me")


class TruncatedMeanwhile(MemoryKafka):
    """A Kafka port where somebody truncates the ledger right after each query for its offsets."""

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return the offsets until now, and truncate."""
        there = super().offsets(topic, partitions, at_least=at_least)
        if topic.endswith(".ledger"):
            self.delete_records(topic, {0: 2})
        return there


def test_a_log_opens_beside_its_first_truncation() -> None:
    """A log opens concurrently with its first truncation, which removes the mark, perhaps between its check and its
    read.

    Nothing is lost.
    """
    twin = written()
    kafka = TruncatedMeanwhile(cluster=twin.cluster)
    with Log.open("log", where_at(kafka, MemoryStore(twin.disk, "log"))) as log:
        assert log.kafka.offsets("log.ledger", [0])[0].start == 2


def test_a_ledger_is_read_beside_its_first_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger is read concurrently with its first truncation: the first snapshot comes behind the check for it."""
    twin = written()
    with twin.open() as log:
        run_round(log, settings_for(tmp_path))
        log.kafka.delete_records(log.ledger_topic, {0: 2})
        newest, before = log.manifests.newest_sound, [None]

        def late(*, max_age_s: float = 0.0) -> Manifest | None:
            return before.pop() if before else newest(max_age_s=max_age_s)

        monkeypatch.setattr(log.manifests, "newest_sound", late)
        assert log.history.read().state.commits["w"].checkpoint.id == COMMITS


@pytest.mark.usefixtures("busy_ledger")
def test_a_barrier_appends_nothing_where_records_were_lost() -> None:
    """A barrier appends nothing where records were lost: it would take a lost offset, and destroy the proof."""
    twin = written()
    lose(twin, 11)
    with impatient(twin) as log:
        for _ in range(2):
            with pytest.raises(BeyondEnd):
                log.barrier()
        assert log.kafka.offsets(log.ledger_topic, [0])[0].end == 11
