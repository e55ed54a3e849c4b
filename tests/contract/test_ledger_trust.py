"""A writer's trust in its ledger, on the twins and on a real broker.

It gets no verdict about another log, and none on a ledger other than the one that it folded.
"""

from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import AlreadyExists, BeyondEnd, DataLoss, IdentityChanged, NotFound, UnsafeTopic
from statelog.log import Log
from statelog.log.making import mark_ledger
from statelog.log.producers import append_all
from statelog.producer.coordinator import Coordinator
from statelog.producer.writer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import LogRig, TwinRig, real_rig, twin_rig


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now_s


@pytest.fixture
def twin() -> TwinRig:
    """Return a log's two places, in memory."""
    return twin_rig("log")


def make_anew(rig: LogRig) -> Log:
    """Delete the log and make one of the same name, as a reset or a restore does under running jobs."""
    Log.delete(rig.name, rig.where())
    return rig.create()


def commit(writer: Writer, checkpoint_id: int, key: bytes = b"k") -> int:
    """Commit one change."""
    writer.put(key, b"v")
    return writer.commit(checkpoint_id=checkpoint_id).offset


def test_no_writer_opens_on_a_log_that_was_made_anew(rig: LogRig, log: Log) -> None:
    """No writer opens through a `Log` that outlived its topics: its verdicts would differ from everybody else's."""
    with Writer(log, "w") as writer:
        commit(writer, 1)
    make_anew(rig).close()

    with pytest.raises(IdentityChanged):
        Writer(log, "w")
    with pytest.raises(IdentityChanged):
        Coordinator(log, "w")


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("commits", [3, 5])
def test_a_living_writer_learns_that_its_log_was_made_anew(rig: LogRig, commits: int) -> None:
    """An open writer learns that its log was re-created, whether the new ledger has as many records or more."""
    clock = Clock()
    log = Environment(clock=clock).run(rig.open)
    old = Writer(log, "w")
    for i in (1, 2, 3):
        commit(old, i)
    with make_anew(rig) as new:
        with Writer(new, "other") as other:
            for i in range(1, commits + 1):
                for k in range(40):  # So that the old writer's chunks do not lie below the new committed positions.
                    other.put(b"n%d" % k, b"v")
                other.commit(checkpoint_id=i)
        clock.now_s += 1.0
        with pytest.raises(DataLoss):
            commit(old, 4)
        old.close()
        log.close()

        assert set(new.commits()) == {"other"}


@pytest.mark.usefixtures("log")
def test_quiet_commits_have_no_offsets_that_could_give_it_away(rig: LogRig) -> None:
    """A commit without changes, which has no offsets to compare, is refused on a re-created log all the same."""
    clock = Clock()
    log = Environment(clock=clock).run(rig.open)
    old = Writer(log, "w")
    old.commit(checkpoint_id=1)
    with make_anew(rig) as new, Writer(new, "other") as other:
        other.commit(checkpoint_id=1)
        clock.now_s += 1.0
        with pytest.raises(DataLoss):
            old.commit(checkpoint_id=2)
    old.close()
    log.close()


def test_settings_are_checked_when_a_writer_opens(rig: LogRig, log: Log) -> None:
    """A `Log` that was opened long ago does not open a writer on a topic that deletes by time now."""
    rig.set_topic_config(log.data_topic, {"retention.ms": "60000"})
    with pytest.raises(UnsafeTopic):
        Writer(log, "w")


def elsewhere(rig: LogRig, tmp_path: Path) -> LogRig:
    """Return the same topics below another root."""
    if isinstance(rig, TwinRig):
        return twin_rig(rig.name, cluster=rig.cluster)
    return real_rig(rig.name, rig.bootstrap, tmp_path / "elsewhere")


def test_topics_belong_to_the_log_below_one_root(rig: LogRig, log: Log, tmp_path: Path) -> None:
    """A second create of equal settings at another root is refused before any write, and names the topics' owner."""
    with pytest.raises(AlreadyExists, match="another root"):
        elsewhere(rig, tmp_path).create()
    with Writer(log, "w") as writer:
        commit(writer, 1)

    assert rig.state() == {b"k": b"v"}


class DeadBeforeTheMark(Exception):
    """The end of a create."""


def die_before_the_mark(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a create that puts its descriptor and no more."""

    def die(*_: object) -> None:
        raise DeadBeforeTheMark

    with monkeypatch.context() as patched, pytest.raises(DeadBeforeTheMark):
        patched.setattr("statelog.log.making.mark_ledger", die)
        rig.create()


def test_a_create_that_died_is_finished_at_its_own_root(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that died is finished at its own root; before it no open succeeds, and other settings are refused."""
    die_before_the_mark(rig, monkeypatch)
    with pytest.raises(NotFound, match="died"):
        rig.open()
    with pytest.raises(AlreadyExists, match="other settings"):
        rig.create(key_groups=8)
    with rig.create() as made, Writer(made, "w") as writer:
        commit(writer, 1)

    assert rig.state() == {b"k": b"v"}


def test_a_create_that_died_owns_nothing(rig: LogRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that died owns nothing: another root may take the empty topics.

    Then the first one is refused, and its deletion leaves them alone.
    """
    die_before_the_mark(rig, monkeypatch)
    other = elsewhere(rig, tmp_path)
    with other.create() as made, Writer(made, "w") as writer:
        commit(writer, 1)
    with pytest.raises(IdentityChanged, match="another root"):
        rig.open()
    with pytest.raises(AlreadyExists):
        rig.create()
    Log.delete(rig.name, rig.where())

    assert other.state() == {b"k": b"v"}


@pytest.mark.parametrize("which", ["log", "log.ledger"])
def test_a_topic_that_was_used_is_not_taken_over(which: str) -> None:
    """A topic of the right shape that holds any record, or held one, is not taken over: it may be somebody's."""
    rig = twin_rig("log")
    kafka = rig.kafka()
    rig.create().close()
    for topic in ("log", "log.ledger"):
        rig.cluster.recreate_topic(topic)
    producer = kafka.producer()
    append_all(producer, which, 0, b"somebody's", 1)
    kafka.delete_records(which, {0: 1})
    with pytest.raises(AlreadyExists, match="not an empty one"):
        twin_rig("log", cluster=rig.cluster).create()


def test_of_two_creates_at_once_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two creates at once one wins, each with a root and a descriptor: the ledger's first mark decides."""
    first = twin_rig("log")
    second = twin_rig("log", cluster=first.cluster)

    def mark_after_the_other(*args: Any) -> None:
        with monkeypatch.context() as undone:
            undone.setattr("statelog.log.making.mark_ledger", mark_ledger)
            second.create().close()
        mark_ledger(*args)

    with monkeypatch.context() as patched:
        patched.setattr("statelog.log.making.mark_ledger", mark_after_the_other)
        with pytest.raises(AlreadyExists, match="another root"):
            first.create()
    with pytest.raises(IdentityChanged, match="another root"):
        first.open()
    assert second.state() == {}


def test_an_empty_ledger_is_none_of_a_log_that_was_made(twin: TwinRig) -> None:
    """An empty ledger of a log that was made is not folded as a new log's: its mark is lost."""
    with twin.create() as log:
        log.patience_s = 0
        twin.cluster.lose_tail(log.ledger_topic, 0, 0)
        for read in (log.commits, log.describe, lambda: recover(log).to_dict(), lambda: Writer(log, "w")):
            with pytest.raises(BeyondEnd, match="lost its mark"):
                read()


def test_a_ledger_that_does_not_begin_with_its_mark_is_not_folded(twin: TwinRig) -> None:
    """A ledger that does not begin with its mark is not folded: it lost everything and grew again."""
    with twin.create() as log:
        twin.cluster.overwrite(log.ledger_topic, 0, 0, b"junk")
        for read in (log.commits, log.describe, lambda: recover(log).to_dict(), lambda: Writer(log, "w")):
            with pytest.raises(BeyondEnd, match="does not begin with its mark"):
                read()
