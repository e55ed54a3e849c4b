"""A log whose topics are deleted: every client raises, and it goes on as a copy of its newest snapshot.

A log that release 0.1 moved to new topics after such a loss is a log like any other.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import (
    CommitRefused,
    Damaged,
    DataLoss,
    Fenced,
    IdentityChanged,
    NotFound,
    OutcomeUnknown,
    PersistFailed,
    StoreUnavailable,
)
from statelog.history import History
from statelog.log import Log, Where, accept_data_loss, accept_ledger_loss
from statelog.log.log import open_snapshots
from statelog.materializer.copy import copy_log
from statelog.materializer.outcome import CompletedRound, RoundOutcome
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, recover
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.records import LossRange
from statelog.testing import Crash
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryStore
from tests.support.rigs.log import TwinLog, settings_for, where_at
from tests.support.rigs.lost_topics import BOTH, KEPT, anew, gone, made, move
from tests.support.samples.folds import put_all

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """Return a log with a snapshot, and with commits behind it that are not part of the model."""
    return made(tmp_path)


LOSSES = {
    "data gone": gone("log"),
    "data anew": anew("log"),
    "ledger gone": gone("log.ledger"),
    "ledger anew": anew("log.ledger"),
    "ledger anew, and longer": anew("log.ledger", records=60),
    "both gone": gone(*BOTH),
    "both anew": anew(*BOTH),
    "both anew, and longer": anew(*BOTH, records=60),
}
lost = pytest.mark.parametrize("strike", LOSSES.values(), ids=LOSSES.keys())
moved = pytest.mark.parametrize("topics", [("log.ledger",), BOTH], ids=["ledger", "both"])


def one_round(log: Log, twin: TwinLog, scratch: Path) -> RoundOutcome:
    """Run a round now."""
    return twin.environment.run(run_round, log, settings_for(scratch))


def copied(twin: TwinLog, scratch: Path) -> Callable[[], Log]:
    """Run `statelog copy log copy --snapshot --finish` on the same cluster; return a function that opens the copy."""

    def there() -> Where:
        return where_at(MemoryKafka(cluster=twin.cluster), MemoryStore(twin.disk, "copy"))

    with open_snapshots("log", Where(None, MemoryStore(twin.disk, "log"))) as alone:
        done = copy_log(alone, "copy", there(), finish=True, is_alone=True, settings=settings_for(scratch))
    assert done.is_finished
    return lambda: Log.open("copy", there())


def go_on(twin: TwinLog, scratch: Path, door: Callable[[], Log], checkpoint: int = KEPT) -> None:
    """Run writers, rounds with truncation, and readers, in other processes than the copier's."""
    with door() as log:
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
        assert log.kafka.offsets(log.ledger_topic, [0])[0].start > 0
        assert len(log.manifests.numbers()) == 2
    with door() as log:
        assert recover(log).to_dict() == twin.model


@lost
def test_it_is_loud_and_names_the_way_out(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """Lost topics raise and name the way out, at an open and for open logs. Nothing is accepted in their place."""
    who = {"reason": "somebody deleted the topics", "operator": "ann"}
    with twin.open() as log:
        log.recheck_s = 0.0
        strike(twin)
        with pytest.raises(IdentityChanged) as told:
            twin.open()
        assert re.search(r"`statelog copy log COPY --snapshot --finish`", told.value.hint)
        for entry in (
            lambda: Writer(log, "writer"),
            lambda: recover(log),
            lambda: one_round(log, twin, tmp_path),
            lambda: accept_ledger_loss(log, reason=who["reason"], operator=who["operator"]),
            lambda: accept_data_loss(log, [LossRange(0, 0, 1)], **who),
        ):
            with pytest.raises(IdentityChanged):
                entry()


@lost
def test_a_copy_goes_on_from_the_newest_snapshot(
    twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path
) -> None:
    """A copy goes on from the newest snapshot: the writer resumes at its checkpoint, so its source repeats the loss.

    The rest of the log can be deleted, and a copy of the copy gets its name.
    """
    strike(twin)
    door = copied(twin, tmp_path)
    go_on(twin, tmp_path, door)
    Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), MemoryStore(twin.disk, "log")))
    assert twin.disk.files("log/") == []
    go_on(twin, tmp_path, door, KEPT + 3)
    for topic in BOTH:  # A recreated topic is not the log's, and only its maker knows its owner.
        MemoryKafka(cluster=twin.cluster).delete_topic(topic)
    with door() as log:
        copy_log(log, "log", twin.where(), finish=True, settings=settings_for(tmp_path))
    go_on(twin, tmp_path, twin.open, KEPT + 6)


@pytest.mark.usefixtures("busy_ledger")
@lost
def test_nobody_of_before_mixes_both(twin: TwinLog, strike: Callable[[TwinLog], None], tmp_path: Path) -> None:
    """Writer, follower, stored handle and resumed stream of the old log each raise, and change nothing in the copy."""
    timed = Environment(clock=twin.clock)
    log = timed.run(twin.open)
    old = timed.run(Writer, log, "writer")
    old.put(b"persisted", b"v")
    handle = old.persist(10).result()
    follower = recover(log).follow(poll_s=0.01)
    applied = next(iter(follower)).cursor
    strike(twin)
    door = copied(twin, tmp_path)
    go_on(twin, tmp_path, door)
    twin.now_s += 1.0
    with pytest.raises((Fenced, DataLoss, OutcomeUnknown, CommitRefused, PersistFailed)):
        old.confirm(handle)  # A remaining ledger takes it: only the next change reveals the missing data topic.
        old.put(b"more", b"v")
        old.commit(checkpoint_id=11)
    old.close()
    with pytest.raises((Damaged, NotFound)):  # NotFound, if it asked while there was no topic.
        follower.apply(lambda _: None)
    with door() as now:
        with pytest.raises(IdentityChanged):
            recover(now, resume=applied)
        with Writer(now, "writer") as writer, pytest.raises(IdentityChanged):
            writer.adopt(handle)
        assert recover(now).to_dict() == twin.model


def test_without_a_snapshot_there_is_nothing_to_copy() -> None:
    """Without a snapshot nothing can be copied: the data topic says nothing without a ledger."""
    twin = TwinLog()
    twin.write({b"k": b"v"})
    gone("log.ledger")(twin)
    with pytest.raises(NotFound, match="no such snapshot"):
        copied(twin, Path())


def test_a_snapshot_that_is_not_whole_makes_no_copy(twin: TwinLog, tmp_path: Path) -> None:
    """The copy of an incomplete snapshot stays closed until the run is back: no other file holds the commits."""
    gone("log.ledger")(twin)
    store, path = MemoryStore(twin.disk, "log"), next(iter(twin.run_paths()))
    kept = store.read(path)
    store.delete(path)
    with pytest.raises((NotFound, Damaged)):
        copied(twin, tmp_path)
    store.put_if_absent(path, kept)
    go_on(twin, tmp_path, copied(twin, tmp_path))


@pytest.mark.parametrize("entry", ["reader", "round", "writer"])
def test_nobody_reads_a_new_ledger_from_a_snapshot_of_the_old_one(twin: TwinLog, entry: str, tmp_path: Path) -> None:
    """A new ledger that replaces the old one right before its read, after all checks, is refused."""

    read_to = History.read_to

    def replaced_now(*args: Any) -> None:
        patch.undo()
        LOSSES["ledger anew, and longer"](twin)
        read_to(*args)

    entries: dict[str, Callable[[], object]] = {
        "reader": lambda: recover(log),
        "round": lambda: one_round(log, twin, tmp_path),
        "writer": lambda: Writer(log, "writer"),
    }
    with twin.open() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(History, "read_to", replaced_now)
        with pytest.raises(DataLoss):
            entries[entry]()


@pytest.mark.usefixtures("busy_ledger")
def test_nobody_follows_a_new_ledger_from_a_state_of_the_old_one(twin: TwinLog) -> None:
    """A follower whose plan holds lost commits of the old ledger raises before any new one."""
    with twin.open() as log, recover(log) as late:
        LOSSES["ledger anew, and longer"](twin)
        with pytest.raises(IdentityChanged), late.follow(poll_s=0.01) as stream:
            stream.apply(lambda _: None)


def test_somebody_else_s_manifests_are_not_gone_on_from(twin: TwinLog) -> None:
    """Somebody else's manifests are not continued: the topics are the original ones, so the log was never moved."""
    with twin.open() as log:
        stored = log.manifests.read(1)
        identity = replace(log.descriptor.identity, ledger_topic_id="another")
        strange = replace(stored, number=2, previous_sha256=bytes(32), identity=identity)
        log.store.put_if_absent("manifests/00000000000000000002.avro", strange.to_bytes())
    with twin.open() as log, pytest.raises(IdentityChanged, match="other topics"):
        Writer(log, "writer")


# ---- a log that release 0.1 moved to new topics


@moved
def test_a_log_that_was_moved_goes_on(twin: TwinLog, topics: tuple[str, ...], tmp_path: Path) -> None:
    """A moved log goes on on the topics that its newest manifest names, and as a copy if they are lost, too."""
    move(twin, *topics)
    go_on(twin, tmp_path, twin.open)
    gone(*topics)(twin)
    with pytest.raises(IdentityChanged):
        twin.open()
    go_on(twin, tmp_path, copied(twin, tmp_path), KEPT + 3)


def test_states_of_before_are_held_no_more(twin: TwinLog, tmp_path: Path) -> None:
    """Earlier states, whose positions have changed, are refused; the log says from where on it holds states."""
    with twin.open() as log:
        position = log.manifests.read(1).position
    move(twin, "log.ledger")
    with twin.open() as log:
        with pytest.raises(NotFound) as told:
            recover(log, at=AtPosition(position))
        oldest = told.value.facts["oldest_position"]
        assert isinstance(oldest, int)
        assert oldest > position
        assert recover(log, at=AtPosition(oldest)).to_dict() == twin.model
    go_on(twin, tmp_path, twin.open)


def test_a_kept_data_topic_s_chunks_bear_no_witness_against_a_new_ledger(twin: TwinLog, tmp_path: Path) -> None:
    """A late chunk that names a higher position of the old ledger is no witness against the new one."""
    with twin.open() as log:
        zombie = Writer(log, "writer")
        for i in range(90):
            zombie.commit(checkpoint_id=KEPT + 10 + i)
        move(twin, "log.ledger")
        with twin.open() as now:
            key = next(b"z%d" % i for i in range(99) if key_group_of(b"z%d" % i, log.descriptor.key_type, 8) == 0)
            zombie.put(key, b"v")
            zombie.persist().result()
            assert recover(now).to_dict() == twin.model
        with pytest.warns(UserWarning, match="uncommitted"):
            zombie.close()
    go_on(twin, tmp_path, twin.open)


def test_the_first_snapshot_of_a_new_ledger_is_of_the_chain(twin: TwinLog, tmp_path: Path) -> None:
    """Rounds clean up with a new ledger's first snapshot next to the old one's last."""
    move(twin, "log.ledger")
    with twin.open() as log, Writer(log, "writer") as writer:
        writer.put(b"new", b"v")
        writer.commit(checkpoint_id=KEPT + 1)
        outcome = twin.environment.run(run_round, log, settings_for(tmp_path, keep=3))
        assert isinstance(outcome, CompletedRound)
        assert outcome.cleanup.held_back == ""
        assert len(log.manifests.numbers()) == 3


# ---- deletion


def test_a_deletion_finds_the_new_topics(twin: TwinLog) -> None:
    """A deletion finds the new topics, which are the log's own."""
    move(twin, *BOTH)
    kafka = MemoryKafka(cluster=twin.cluster)
    Log.delete("log", Where(kafka, MemoryStore(twin.disk, "log")))
    assert [kafka.describe_topic(topic) for topic in BOTH] == [None, None]


def test_a_deletion_that_died_between_the_new_topics_goes_on(twin: TwinLog) -> None:
    """A deletion that died between the new topics goes on, and a log of this name can be made again."""
    move(twin, *BOTH)

    class Dying(MemoryKafka):
        """A Kafka port whose process dies before it deletes the ledger."""

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
    """A deletion reads each manifest once, for both topics together: the descriptor names neither."""
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
    """A deletion on a store that lists deleted files ends with an error for its caller.

    A file server retains a file that some process holds open, under a name of its own.
    """

    class Keeping(MemoryStore):
        """A store that deletes no run."""

        def delete(self, path: str) -> None:
            if not path.startswith("runs"):
                super().delete(path)

    store = Keeping(twin.disk, "log")
    with pytest.raises(StoreUnavailable, match="listed again") as raised:
        Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), store))
    assert str(raised.value.facts["path"]).startswith("runs")
    Log.delete("log", Where(MemoryKafka(cluster=twin.cluster), MemoryStore(twin.disk, "log")))
    assert twin.disk.files("log/") == []
