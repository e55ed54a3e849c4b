"""The promises of messages that leave with a commit, up to where they are read again: on twins and on a real broker.

A message is part of the commit that follows it, or never was. Nobody who reads changes sees it.
"""

import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import (
    ClosedError,
    CommitRefused,
    InvalidChange,
    LogInUse,
    Misuse,
    NotFound,
    StatelogError,
    UncommittedChanges,
    UnknownFormat,
    ValueTooLarge,
)
from statelog.kafka.port import OffsetRange
from statelog.log import Log, accept_data_loss
from statelog.materializer import CompletedRound, run_round
from statelog.materializer.copy import copy_log
from statelog.producer import Coordinator, Writer, WriterSettings
from statelog.producer.settings import WriterTuning
from statelog.reading import HeldSubscription, OutputReader, outputs_between
from statelog.recovery import AtPosition, plan_changes, read_changes, recover
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.records import Commit, LossRange
from statelog.schemas.names import SENDER
from statelog.schemas.outputs.output import Output
from statelog.schemas.snapshot.claims import OUTPUTS
from tests.support.rigs.kafka import spec_of
from tests.support.rigs.log import LogRig, TwinRig, key_in, real_rig, settings_for, twin_rig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")

SMALL = WriterSettings(_tuning=WriterTuning(chunk_bytes=256), inline_bytes=0)


@pytest.fixture
def target(rig: LogRig) -> Iterator[str]:
    """Yield a new topic of three partitions on the log's cluster."""
    name = f"target-{uuid.uuid4().hex[:12]}"
    with closing(rig.kafka()) as kafka:
        kafka.create_topic(spec_of(name))
        yield name
        with suppress(StatelogError):
            kafka.delete_topic(name)


def sent(log: Log, writer: str = "w", after: int = 0) -> list[Output]:
    """Return all committed messages of a writer, and check that their parts follow each other."""
    found, expected = list[Output](), (0, 0)
    for part in outputs_between(log, writer, after, log.ledger.end()):
        number = expected[1] if part.position == expected[0] else 0
        assert (part.number, part.position > expected[0] or number > 0) == (number, True)
        expected = (0, 0) if part.is_last else (part.position, number + len(part.outputs))
        found += part.outputs
    assert expected == (0, 0)
    return found


# ---- with a commit, or never


@pytest.mark.parametrize("inline_bytes", [0, 16 << 10])
def test_messages_are_those_of_commits(rig: LogRig, log: Log, target: str, inline_bytes: int) -> None:
    """Messages come out in the order of sending, with all they were sent with; those of no commit do not."""
    with Writer(log, "w", settings=WriterSettings(inline_bytes=inline_bytes)) as writer:
        writer.put(b"k", b"v")
        writer.send(target, b"1", b"k", {"kind": "new"}, 2)
        writer.send(target, "zwei")
        first = writer.commit()
        writer.send(target, None, "k")
        assert sent(log) == [Output(target, b"1", b"k", (("kind", b"new"),), 2), Output(target, b"zwei")]
        writer.commit()
        writer.send(target, b"never")

    with rig.open() as other:
        assert [one.value for one in sent(other)] == [b"1", b"zwei", None]
        assert [one.value for one in sent(other, after=first.offset + 1)] == [None]
        assert sent(other, "another") == []
    assert rig.state() == {b"k": b"v"}


def test_a_message_of_a_persisted_handle_never_was(rig: LogRig, log: Log, target: str) -> None:
    """A writer that ends between persist and commit leaves no message behind, and the next life commits others."""
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"lost")
        writer.persist().result()
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"kept")
        writer.commit()
    assert [one.value for one in sent(log)] == [b"kept"]
    assert rig.state() == {}


@pytest.mark.parametrize("inline_bytes", [0, 16 << 10])
def test_a_commit_may_have_messages_alone(rig: LogRig, log: Log, target: str, inline_bytes: int) -> None:
    """A commit with messages and no changes is a commit, moves the source, and can be the last one."""
    with Writer(log, "w", settings=WriterSettings(inline_bytes=inline_bytes)) as writer:
        writer.send(target, b"1")
        writer.commit({"offset": 1})
        writer.send(target, b"2")
        writer.commit({"offset": 2}, final=True)
    with rig.open() as other:
        assert [one.value for one in sent(other)] == [b"1", b"2"]
        assert other.history.read().state.commits == {}


def test_large_messages_are_sent_ahead_in_order(rig: LogRig, log: Log, target: str) -> None:
    """Messages beyond a chunk are sent before any commit asks, in several chunks; they come in parts, in order."""
    values = [b"%03d" % number + bytes(60) for number in range(100)]
    with Writer(log, "w", settings=SMALL) as writer:
        for number, value in enumerate(values):
            writer.put(b"k%d" % number, b"v")
            writer.send(target, value, b"k")
        assert writer.statistics().messages == 100
        handle = writer.persist().result()
        writer.confirm(handle)
        assert writer.statistics().messages == 100
    assert handle.messages == 100
    assert sum(entry.chunks for entry in handle.outputs) > 30
    with rig.open() as other:
        parts = list(outputs_between(other, "w", 0, other.ledger.end()))
        assert [one.value for one in sent(other)] == values
    assert [part.is_last for part in parts] == [*[False] * (len(parts) - 1), True]
    assert rig.state() == {b"k%d" % number: b"v" for number in range(100)}


def test_a_handle_carries_its_messages(rig: LogRig, log: Log, target: str) -> None:
    """A handle that was stored is adopted with its messages; unconfirmed checkpoints' messages come once, in order."""
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"1")
        writer.persist(1).result()
        writer.put(b"k", b"v")
        writer.send(target, b"2")
        stored = writer.persist(2).result().to_bytes()
    with rig.open() as other, Writer(other, "w") as writer:
        writer.adopt(Handle.from_bytes(stored))
        writer.send(target, b"3")
        with pytest.raises(Misuse, match="appended"):
            writer.adopt(Handle.from_bytes(stored))
        writer.commit()
        assert [one.value for one in sent(other)] == [b"1", b"2", b"3"]
    assert rig.state() == {b"k": b"v"}


def test_a_handle_behind_other_commits_is_refused(rig: LogRig, log: Log, target: str) -> None:
    """A handle of messages alone that lie below what another writer has committed since is refused, as changes are.

    A subscription would not hold them any more.
    """
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"1")
        stored = writer.persist().result()
    with Writer(log, "other", settings=SMALL) as writer:
        writer.put(key_in(log, 0), b"v")
        writer.commit()
    with rig.open() as again, Writer(again, "w") as writer, pytest.raises(CommitRefused, match="below"):
        writer.adopt(stored)


def test_an_aborted_checkpoint_keeps_its_messages(log: Log, target: str) -> None:
    """After a reset the next checkpoint has the messages, once."""
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"1")
        writer.persist(1).result()
        writer.reset(1)
        writer.send(target, b"2")
        writer.commit(checkpoint_id=2)
    assert [one.value for one in sent(log)] == [b"1", b"2"]


def test_a_coordinator_commits_what_a_handle_lists(rig: LogRig, log: Log, target: str) -> None:
    """A coordinator that commits an earlier life's handle checks and commits its messages, too."""
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"1")
        handle = writer.persist().result()
    with rig.open() as other, Coordinator(other, "w") as coordinator:
        coordinator.commit([handle])
        assert [one.value for one in sent(other)] == [b"1"]


def test_writers_of_one_log_have_their_own_messages(rig: LogRig, log: Log, target: str) -> None:
    """Messages are by writer, wherever their commits lie, and each writer's lie in its lowest partition."""
    with Writer(log, "a", partitions=[3, 1]) as one, Writer(log, "b", partitions=[2], settings=SMALL) as two:
        for number in range(5):
            one.send(target, b"a%d" % number)
            two.send(target, b"b%d" % number)
            one.confirm(handle := one.persist().result())
            two.commit()
            assert {entry.partition for entry in handle.outputs} == {1}
    with rig.open() as other, OutputReader(other, "b") as reader:
        assert [out.value for out in sent(other, "a")] == [b"a%d" % number for number in range(5)]
        for _ in range(2):  # With the clients of the first read.
            parts = list(reader.between(0, other.ledger.end()))
            assert [out.value for part in parts for out in part.outputs] == [b"b%d" % number for number in range(5)]


# ---- what nobody sees


def test_no_reader_of_changes_sees_a_message(rig: LogRig, log: Log, target: str, tmp_path: Path) -> None:
    """State, changes, followers, rounds and later recoveries are those of a log without messages."""
    with Writer(log, "w", settings=SMALL) as writer:
        for number in range(6):
            writer.put(b"k%d" % (number % 4), b"%d" % number)
            for _ in range(4):
                writer.send(target, bytes(100))
            writer.commit()
    expected = {b"k0": b"4", b"k1": b"5", b"k2": b"2", b"k3": b"3"}
    with rig.open() as other:
        with recover(other) as recovery:
            assert recovery.to_dict() == expected
        assert sum(one.num_rows for one in read_changes(other, plan_changes(other, AtPosition(0)))) == 6
        done = run_round(other, settings_for(tmp_path))
        assert isinstance(done, CompletedRound)
        assert (done.changes, done.rows) == (6, 4)
        with recover(other) as recovery:
            assert recovery.to_dict() == expected


@pytest.mark.parametrize("inline_bytes", [0, 16 << 10])
def test_rounds_of_messages_alone(rig: LogRig, log: Log, target: str, tmp_path: Path, inline_bytes: int) -> None:
    """A log of messages alone has snapshots like any other, and its first change is seen behind them."""
    with Writer(log, "w", settings=WriterSettings(inline_bytes=inline_bytes)) as writer:
        for number in range(4):
            writer.send(target, b"%d" % number)
            writer.commit()
            assert isinstance(run_round(log, settings_for(tmp_path)), CompletedRound)
        writer.put(b"k", b"v")
        writer.commit()
        assert isinstance(run_round(log, settings_for(tmp_path)), CompletedRound)
    assert rig.state() == {b"k": b"v"}


def test_a_log_without_messages_has_the_bytes_of_before(rig: LogRig, log: Log) -> None:
    """Commits of a log that sends nothing are of the versions that older programs read, and so are its handles."""
    with Writer(log, "w") as writer:
        for number in range(2):
            writer.put(b"k", b"v")
            handle = writer.persist().result()
            writer.confirm(handle)
            assert handle.to_bytes()[4] == 1, number
            writer.put(b"k", b"w")
            writer.commit()
    with closing(log.kafka.reader(log.ledger_topic)) as reader:
        values = [one.value for one in reader.read({0: OffsetRange(0, log.ledger.end())}, stall_timeout_s=30.0)]
    assert sorted({value[4] for value in values if isinstance(ledger.decode(value), Commit)}) == [2, 3]


# ---- refused at the call


def test_what_cannot_be_sent_is_refused_at_the_call(log: Log, target: str) -> None:
    """A wrong message is refused by name, and the writer goes on without it."""
    with Writer(log, "w") as writer:
        refused: list[tuple[type[StatelogError], tuple[Any, ...]]] = [
            (InvalidChange, ("a/b", b"v")),
            (InvalidChange, (log.data_topic, b"v")),
            (InvalidChange, (log.ledger_topic, b"v")),
            (InvalidChange, (target, b"v", None, None, 3)),
            (InvalidChange, (target, 1)),
            (NotFound, (f"{target}-gone", b"v")),
            (ValueTooLarge, (target, bytes(log.descriptor.record_bytes_max))),
        ]
        for kind, args in refused:
            with pytest.raises(kind):
                writer.send(*args)
        writer.send_output(writer.make_output(target, b"1", partition=2))
        writer.commit()
    assert sent(log) == [Output(target, b"1", None, (), 2)]
    with pytest.raises(ClosedError):
        writer.send(target, b"v")


def test_the_largest_message_is_sent(rig: LogRig, log: Log, target: str) -> None:
    """A message of the largest size that is not refused arrives."""
    size = log.descriptor.record_bytes_max * 15 // 16 - 200
    with Writer(log, "w") as writer:
        writer.send(target, bytes(size))
        writer.commit()
    with rig.open() as other:
        assert [len(one.value or b"") for one in sent(other)] == [size]


def test_a_topic_is_looked_up_once(log: Log, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known topic costs no request."""
    asked: list[str] = []
    find = type(log.kafka).describe_topic

    def look_up(kafka: Any, topic: str) -> object:
        asked.append(topic)
        return find(kafka, topic)

    with Writer(log, "w") as writer:
        monkeypatch.setattr(type(log.kafka), "describe_topic", look_up)
        for _ in range(3):
            writer.send(target, b"v", partition=1)
        writer.commit()
    assert asked.count(target) <= 1


def test_closing_with_unsent_messages_warns(log: Log, target: str) -> None:
    """Messages of no commit are discarded with a warning, like changes."""
    writer = Writer(log, "w")
    writer.send(target, b"v")
    with pytest.warns(UncommittedChanges):
        writer.close()


# ---- lost, held, copied


def lose(rig: LogRig, log: Log, partition: int, before: int) -> None:
    """Delete the records of a data partition below an offset, behind everybody's back."""
    with closing(rig.kafka()) as kafka:
        kafka.delete_records(log.data_topic, {partition: before})


def test_a_lost_message_is_an_error_until_a_person_accepts_it(rig: LogRig, log: Log, target: str) -> None:
    """A listed message that is gone stops who reads it, by name. Accepted as lost, the others come out."""
    handles: list[Handle] = []
    with Writer(log, "w", settings=SMALL) as writer:
        for number in range(3):
            writer.send(target, b"%d" % number)
            handles.append(writer.persist().result())
            writer.confirm(handles[-1])
    (gone,) = handles[0].outputs
    lose(rig, log, gone.partition, gone.end_offset)
    with rig.open() as other:
        with pytest.raises(StatelogError) as caught:
            sent(other)
        assert caught.value.facts["topic"] == log.data_topic
        lost = LossRange(gone.partition, gone.first_offset, gone.end_offset)
        accept_data_loss(other, [lost], reason="test", operator="test")
    with rig.open() as other:
        other.history.read()
        assert [one.value for one in sent(other)] == [b"1", b"2"]


def test_a_handle_whose_messages_are_gone_is_not_adopted(rig: LogRig, log: Log, target: str) -> None:
    """Adopting verifies the messages of a handle, too."""
    with Writer(log, "w", settings=SMALL) as writer:
        writer.send(target, b"1")
        handle = writer.persist().result()
    (gone,) = handle.outputs
    lose(rig, log, gone.partition, gone.end_offset)
    with rig.open() as other, Writer(other, "w") as writer, pytest.raises(StatelogError):
        writer.adopt(handle)


def held(log: Log, writer: str) -> HeldSubscription:
    """Hold what a writer's messages need from here on, as their publisher does."""
    subscription = HeldSubscription(log, f"{OUTPUTS}{writer}", holder_id="publisher", holder="test")
    view = log.history.read()
    subscription.hold(view.state, view.place.last, take_up=True)
    return subscription


@pytest.mark.parametrize("inline_bytes", [0, 16 << 10])
def test_a_subscription_holds_unpublished_messages(
    rig: LogRig, log: Log, target: str, tmp_path: Path, inline_bytes: int
) -> None:
    """Rounds that truncate everything else leave the messages behind a subscription, and free them once it moves."""
    with Writer(log, "w", settings=WriterSettings(inline_bytes=inline_bytes)) as writer:
        writer.put(key_in(log, 0), b"before")
        writer.commit()
        subscription, start = held(log, "w"), log.history.place.position
        for number in range(8):
            writer.put(key_in(log, 0), b"%d" % number)
            writer.send(target, b"%d" % number)
            writer.commit()
            run_round(log, settings_for(tmp_path))
        with rig.open() as other, OutputReader(other, "w") as reader:
            base = subscription.newest()
            parts = list(reader.between(start, other.ledger.end(), base))
            assert list(outputs_between(other, "w", start, other.ledger.end(), base)) == parts
        assert [one.value for part in parts for one in part.outputs] == [b"%d" % number for number in range(8)]

        view = log.history.read()
        subscription.hold(view.state, view.place.last)
        for _ in range(3):
            writer.put(key_in(log, 0), b"after")
            writer.commit()
            run_round(log, settings_for(tmp_path))
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start > start


def beside(rig: LogRig, root: Path) -> LogRig:
    """Return a rig of another log on the same cluster."""
    name = f"{rig.name[:60]}-2"
    if isinstance(rig, TwinRig):
        return twin_rig(name, cluster=rig.cluster)
    return real_rig(name, rig.bootstrap, root)


def test_a_finishing_copy_refuses_unpublished_messages(rig: LogRig, log: Log, target: str, tmp_path: Path) -> None:
    """A copy goes on beside unpublished messages, but is not finished before they are published, or given up."""
    other = beside(rig, tmp_path / "other")
    settings = settings_for(tmp_path)
    with Writer(log, "w") as writer:
        subscription = held(log, "w")
        writer.append_meta(SENDER, b"publisher")
        writer.put(b"k", b"v")
        writer.send(target, b"1")
        writer.commit()
    copy_log(log, other.name, other.where(), settings=settings)
    with pytest.raises(LogInUse, match="published") as caught:
        copy_log(log, other.name, other.where(), finish=True, settings=settings)
    assert caught.value.facts["writer"] == "w"
    view = log.history.read()
    subscription.hold(view.state, view.place.last)
    assert copy_log(log, other.name, other.where(), finish=True, settings=settings).is_finished
    with other.open() as moved, Writer(moved, "w", expect=1):
        assert moved.history.read().state.meta == ()


# ---- older programs


def test_older_programs_stop_at_messages(log: Log, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that knows only the versions of before stops at a commit with messages, carried or listed."""
    known = vars(ledger)["_DECODERS"]
    older = {key: read for key, read in known.items() if key[1] < 4 and key != (6, 2)}
    with Writer(log, "w") as writer:
        writer.send(target, b"1")
        offsets = [writer.commit().offset]
        writer.send(target, b"2")
        handle = writer.persist().result()
        offsets.append(writer.confirm(handle).offset)
    assert handle.to_bytes()[4] == 2
    with closing(log.kafka.reader(log.ledger_topic)) as reader:
        ranges = {0: OffsetRange(offsets[0], offsets[-1] + 1)}
        values = [one.value for one in reader.read(ranges, stall_timeout_s=30.0)]
    monkeypatch.setattr(ledger, "_DECODERS", older)
    for value in values:
        with pytest.raises(UnknownFormat):
            ledger.decode(value)
