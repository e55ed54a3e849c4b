"""A log whose topics are gone: all are told, and once a person accepts that, it goes on from the newest snapshot."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import (
    ConfigError,
    Damaged,
    DataLoss,
    Fenced,
    IdentityChanged,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
)
from statelog.materializer.outcome import CompletedRound, LostRound, RoundOutcome
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, recover
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage.ledger_client import LedgerClient
from statelog.storage.log.ledger import Ledger
from statelog.storage.log.log import Log
from statelog.storage.log.loss import TopicFate, TopicLoss, accept_data_loss
from statelog.storage.log.where import Where
from statelog.testing import Crash
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.faults.death import Death, dying
from tests.support.rigs.log import TwinLog, settings_for
from tests.support.rigs.lost_topics import BOTH, KEPT, accept, anew, gone, made
from tests.support.samples.folds import put_all

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """A log with a snapshot, and with commits behind it that are not part of the model."""
    return made(tmp_path)


LOSSES = {
    "ledger gone": gone("log.ledger"),
    "ledger anew": anew("log.ledger"),
    "ledger anew, and longer": anew("log.ledger", records=60),
    "both gone": gone(*BOTH),
    "both anew": anew(*BOTH),
    "both anew, and longer": anew(*BOTH, records=60),
}
lost = pytest.mark.parametrize("strike", LOSSES.values(), ids=LOSSES.keys())


def one_round(log: Log, twin: TwinLog, scratch: Path) -> RoundOutcome:
    """A round now."""
    return twin.environment.run(run_round, log, settings_for(scratch))


def go_on(twin: TwinLog, scratch: Path, checkpoint: int = KEPT) -> None:
    """Writers, rounds with truncation, and readers work, in other processes than the one that accepted."""
    with twin.open() as log:
        assert recover(log).to_dict() == twin.model
        with Writer(log, "writer", expect=checkpoint) as writer:
            for i in range(1, 4):
                changes: dict[bytes, bytes | None] = {b"new%d" % i: b"%d" % checkpoint, b"k0": None}
                put_all(writer, changes.items())
                writer.commit(checkpoint_id=checkpoint + i)
                twin.apply(changes)
                assert recover(log).to_dict() == twin.model
                outcome = one_round(log, twin, scratch)
                assert isinstance(outcome, CompletedRound)
                assert outcome.cleanup.held_back == ""
        assert log.kafka.offsets("log.ledger", [0])[0].start > 0
        assert len(log.manifests.numbers()) == 2
    with twin.open() as log:
        assert recover(log).to_dict() == twin.model


@lost
def test_it_is_loud_until_it_is_accepted(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """To who opens the log, and to who had it open."""
    with twin.open() as log:
        log.look_again_s = 0.0
        strike(twin)
        with pytest.raises(IdentityChanged):
            twin.open()
        for entry in (lambda: Writer(log, "writer"), lambda: recover(log), lambda: one_round(log, twin, tmp_path)):
            with pytest.raises(IdentityChanged):
                entry()


@lost
def test_all_goes_on_from_the_newest_snapshot(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """The writer resumes at the snapshot's checkpoint, so that its source brings what was lost once more."""
    strike(twin)
    accept(twin).close()
    go_on(twin, tmp_path)
    with pytest.raises(ConfigError, match="are there"):
        accept(twin)


@lost
def test_it_may_happen_again(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """The third topics follow the second ones, whatever the first ones were."""
    strike(twin)
    accept(twin).close()
    go_on(twin, tmp_path)
    strike(twin)
    with pytest.raises(IdentityChanged):
        twin.open()
    accept(twin).close()
    go_on(twin, tmp_path, KEPT + 3)


@lost
def test_nobody_of_before_mixes_both(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """Writer, follower, round, reader, stored handle and resumed stream: each is told, and changes nothing."""
    log = twin.open()
    old = Environment(clock=twin.clock).run(Writer, log, "writer")
    old.put(b"persisted", b"v")
    handle = old.persist(10).result()
    follower = recover(log).follow(poll_s=0.01)
    applied = next(iter(follower)).cursor
    strike(twin)
    accept(twin).close()
    go_on(twin, tmp_path)
    twin.now_s += 1.0
    with pytest.raises((Fenced, DataLoss, OutcomeUnknown)):
        old.confirm(handle)
    old.close()
    with pytest.raises((Damaged, NotFound)):  # NotFound, if it asked while there was no topic.
        follower.apply(lambda _: None)
    for entry in (lambda: Writer(log, "writer"), lambda: recover(log), lambda: one_round(log, twin, tmp_path)):
        with pytest.raises(IdentityChanged):
            entry()
    with pytest.raises(IdentityChanged):
        accept_data_loss(log, [LossRange(0, 0, 1)], reason="late", operator="me")
    with twin.open() as now:
        with pytest.raises(IdentityChanged):
            recover(now, resume=applied)
        with Writer(now, "writer") as writer, pytest.raises(IdentityChanged):
            writer.adopt(handle)
        assert recover(now).to_dict() == twin.model


@pytest.mark.parametrize("each", [pytest.param(2, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("strike", [LOSSES["ledger gone"], LOSSES["both gone"]], ids=["ledger", "both"])
def test_an_acceptance_that_dies_anywhere_is_run_again(
    strike: Callable[[TwinLog], None], after: bool, each: int, tmp_path: Path
) -> None:
    """Before a call to Kafka or the store, or after it: what is there is refused, or is the snapshot's state."""
    dead = 0
    for dead in count(int(after) % each, each):
        twin = made(tmp_path)
        strike(twin)
        death = Death(at=dead, after=after)
        try:
            accept(
                twin,
                kafka=dying(MemoryKafka(cluster=twin.cluster), death),
                root=dying(MemoryStore(twin.disk, "log"), death),
            )
        except Death:
            pass
        else:
            break
        try:
            with twin.open() as log:
                assert recover(log).to_dict() == twin.model
        except IdentityChanged:
            accept(twin).close()
        with twin.open() as log:
            assert recover(log).to_dict() == twin.model
            Writer(log, "writer", expect=KEPT).close()
    assert dead > 20


def test_a_round_that_stalled_loses_its_slot(twin: TwinLog, tmp_path: Path) -> None:
    """It had folded the old ledger, and puts its manifest after the one that begins the new ledger."""

    def strike(point: str) -> None:
        if point == "after-list":
            gone("log.ledger")(twin)
            accept(twin).close()

    with twin.open() as log:
        assert isinstance(
            replace(twin.environment, crash=strike).run(run_round, log, settings_for(tmp_path)), LostRound
        )
        with pytest.raises(IdentityChanged):
            one_round(log, twin, tmp_path)
    go_on(twin, tmp_path)


def test_a_round_that_was_faster_is_gone_on_from(twin: TwinLog, tmp_path: Path) -> None:
    """Its manifest is history, so the commits in it are not lost."""
    is_stalled, may_go_on = threading.Event(), threading.Event()

    def stall(point: str) -> None:
        if point == "after-list":
            is_stalled.set()
            may_go_on.wait()

    def old_round() -> None:
        with twin.open() as log, contextlib.suppress(NotFound):  # For want of a topic, once its manifest stands.
            replace(twin.environment, crash=stall).run(run_round, log, settings_for(tmp_path))

    stalled = threading.Thread(target=old_round)
    stalled.start()
    is_stalled.wait()
    gone(*BOTH)(twin)

    def resume_it(_event: threading.Event, _timeout_s: float) -> None:
        may_go_on.set()
        stalled.join()

    accept(twin, wait=resume_it).close()
    twin.apply({b"lost%d" % i: b"v" for i in range(4)})
    go_on(twin, tmp_path, KEPT + 4)


def test_two_people_accept_it(twin: TwinLog, tmp_path: Path) -> None:
    """The slower one finds it done, and what was committed since stays."""
    gone("log.ledger")(twin)

    def other(_: TopicLoss) -> None:
        accept(twin).close()
        twin.write({b"since": b"v"})

    accept(twin, confirm=other).close()
    go_on(twin, tmp_path, KEPT + 1)


def test_a_person_hears_what_is_lost(twin: TwinLog) -> None:
    """And may still say no; then nothing was done."""
    told: list[TopicLoss] = []

    def refuse(loss: TopicLoss) -> None:
        told.append(loss)
        raise ConfigError("no")

    gone("log.ledger")(twin)
    with pytest.raises(ConfigError, match="no"):
        accept(twin, confirm=refuse)
    assert (told[0].data, told[0].ledger, told[0].manifest) == (TopicFate.KEPT, TopicFate.GONE, 1)
    assert MemoryKafka(cluster=twin.cluster).describe_topic("log.ledger") is None


def test_states_of_before_are_held_no_more(twin: TwinLog, tmp_path: Path) -> None:
    """Their positions are others now; the log says from where on it holds states."""
    with twin.open() as log:
        position = log.manifests.read(1).position
    gone("log.ledger")(twin)
    with accept(twin) as log:
        with pytest.raises(NotFound) as told:
            recover(log, at=AtPosition(position))
        oldest = told.value.facts["oldest_position"]
        assert isinstance(oldest, int)
        assert oldest > position
        assert recover(log, at=AtPosition(oldest)).to_dict() == twin.model
    go_on(twin, tmp_path)


def test_a_kept_data_topic_s_chunks_bear_no_witness_against_a_new_ledger(twin: TwinLog, tmp_path: Path) -> None:
    """A task that is slow to die sends a chunk that had seen more of the old ledger than the new one holds."""
    with twin.open() as log:
        zombie = Writer(log, "writer")
        for i in range(30):
            zombie.commit(checkpoint_id=KEPT + 10 + i)
        gone("log.ledger")(twin)
        with accept(twin) as now:
            key = next(b"z%d" % i for i in range(99) if key_group_of(b"z%d" % i, log.descriptor.key_type, 8) == 0)
            zombie.put(key, b"v")
            zombie.persist(99).result()
            assert recover(now).to_dict() == twin.model
        with pytest.warns(UserWarning, match="uncommitted"):
            zombie.close()
    go_on(twin, tmp_path)


@pytest.mark.parametrize("entry", ["reader", "round", "writer"])
def test_nobody_reads_a_new_ledger_from_a_snapshot_of_the_old_one(twin: TwinLog, entry: str, tmp_path: Path) -> None:
    """All that is asked first was asked in time; the ledger is replaced right before it is read."""

    def replaced_now(ledger: Ledger, base: Manifest | None = None, **options: Any) -> LedgerClient:
        patch.undo()
        gone("log.ledger")(twin)
        accept(twin).close()
        twin.write({b"since": b"v"})
        return ledger.client(base, **options)

    entries: dict[str, Callable[[], object]] = {
        "reader": lambda: recover(log),
        "round": lambda: one_round(log, twin, tmp_path),
        "writer": lambda: Writer(log, "writer"),
    }
    with twin.open() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "client", replaced_now)
        with pytest.raises(DataLoss):
            entries[entry]()
    go_on(twin, tmp_path, KEPT + 1)


def test_a_writer_that_the_snapshot_knows_as_living_is_over(twin: TwinLog, tmp_path: Path) -> None:
    """Its commit lands in the new ledger, continues its checkpoint, and is void all the same."""
    with twin.open() as log:
        zombie = Environment(clock=twin.clock).run(Writer, log, "zombie")
        zombie.put(b"z", b"1")
        zombie.commit(checkpoint_id=1)
        twin.apply({b"z": b"1", **{b"lost%d" % i: b"v" for i in range(4)}})
        one_round(log, twin, tmp_path)
        anew("log.ledger")(twin)
        accept(twin).close()
        twin.now_s += 1.0
        zombie.put(b"z", b"2")
        with pytest.raises(DataLoss):
            zombie.commit(checkpoint_id=2)
        zombie.close()
    go_on(twin, tmp_path, KEPT + 4)


def test_the_first_snapshot_of_a_new_ledger_is_of_the_chain(twin: TwinLog, tmp_path: Path) -> None:
    """Rounds that keep it beside the last one of the old ledger clean up."""
    gone("log.ledger")(twin)
    with accept(twin) as log, Writer(log, "writer") as writer:
        writer.put(b"new", b"v")
        writer.commit(checkpoint_id=KEPT + 1)
        outcome = twin.environment.run(run_round, log, settings_for(tmp_path, keep=3))
        assert isinstance(outcome, CompletedRound)
        assert outcome.cleanup.held_back == ""
        assert len(log.manifests.numbers()) == 3


def test_nobody_follows_a_new_ledger_from_a_state_of_the_old_one(twin: TwinLog) -> None:
    """Its plan was made in time, and holds commits that are lost: it is told before it hears of any other."""
    with twin.open() as log, recover(log) as late:
        anew("log.ledger")(twin)
        accept(twin).close()
        for i in range(9):
            twin.write({b"n%d" % i: b"v"})
        with pytest.raises(IdentityChanged), late.follow(poll_s=0.01) as stream:
            stream.apply(lambda _: None)


def test_a_deletion_finds_the_new_topics(twin: TwinLog) -> None:
    """They are the log's own."""
    gone(*BOTH)(twin)
    accept(twin).close()
    kafka = MemoryKafka(cluster=twin.cluster)
    Log.delete("log", Where(kafka, MemoryStore(twin.disk, "log")))
    assert [kafka.describe_topic(topic) for topic in BOTH] == [None, None]


def test_a_deletion_that_died_between_the_new_topics_goes_on(twin: TwinLog) -> None:
    """One of them is gone, and the other one is the log's all the same: a log of this name can be made again."""
    gone(*BOTH)(twin)
    accept(twin).close()

    class Dying(MemoryKafka):
        """Its process dies before it deletes the ledger."""

        def delete_topic(self, topic: str) -> None:
            if topic == "log.ledger":
                raise Crash(topic)
            super().delete_topic(topic)

    store = MemoryStore(twin.disk, "log")
    with pytest.raises(Crash):
        Log.delete("log", Where(Dying(cluster=twin.cluster), store))
    kafka = MemoryKafka(cluster=twin.cluster)
    Log.delete("log", Where(kafka, store))
    assert [kafka.describe_topic(topic) for topic in BOTH] == [None, None]
    assert twin.disk.files("log/") == []


def test_a_deletion_reads_each_manifest_once(twin: TwinLog) -> None:
    """Neither topic is one that the descriptor names: what manifests say of them is asked for both together."""
    anew(*BOTH)(twin)
    asked = list[str]()

    def note(method: str, path: str) -> None:
        if method == "read":
            asked.append(path)

    store = MemoryStore(twin.disk, "log", faults=note)
    kept = len(list(store.list("manifests")))
    Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), store))
    assert kept
    assert len([path for path in asked if path.startswith("manifests")]) == kept


def test_a_deletion_ends_on_a_store_that_lists_what_is_gone(twin: TwinLog) -> None:
    """A file server keeps what some process holds open, under a name of its own: who deletes the log is told of it."""

    class Keeping(MemoryStore):
        """Deletes no run."""

        def delete(self, path: str) -> None:
            if not path.startswith("runs"):
                super().delete(path)

    store = Keeping(twin.disk, "log")
    with pytest.raises(StoreUnavailable, match="listed again") as raised:
        Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), store))
    assert str(raised.value.facts["path"]).startswith("runs")
    Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), MemoryStore(twin.disk, "log")))
    assert twin.disk.files("log/") == []
