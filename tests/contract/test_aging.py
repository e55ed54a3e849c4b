"""Logs on topics whose records Kafka deletes by their age: needed records stay young as long as rounds run.

A record that ages is reported long before Kafka deletes it, and its loss is an error. On twins whose clock the test
moves, and where Kafka deletes old records when the test says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog.environment import Environment
from statelog.errors import (
    ConfigError,
    CorruptDescriptor,
    DataLoss,
    OffsetGone,
    UncommittedChanges,
    UnknownFormat,
    UnsafeTopic,
)
from statelog.log import Log, LogOptions, Where, accept_data_loss
from statelog.materializer import CompletedRound, Materializer, SkippedRound, run_round
from statelog.materializer.events import EventKind, shortfalls
from statelog.materializer.outcome import RoundOutcome
from statelog.operate.examination import examine
from statelog.operate.finding import Severity
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.schemas.avro import RecordCodec
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.names import TRUNCATIONS
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.topic_policy import Truncation
from statelog.store.files import put_truncation
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.providers.cluster import ProviderCluster
from tests.support.providers.provider import APACHE, MSK_EXPRESS, WARPSTREAM, Provider
from tests.support.rigs.log import LogRig, key_in, keys_in, settings_for
from tests.support.samples.chunks import mutations
from tests.support.told import lines, told

DAY_S = 86_400.0
WEEK = Provider(name="a week at most", least={"retention.ms": 0}, most={"retention.ms": 7 * 86_400_000})


@dataclass
class Aging:
    """A log on a service that retains records for a week, its clock, and the state that it must hold."""

    options: LogOptions = field(default_factory=lambda: LogOptions(partitions=2))
    waived: tuple[str, ...] = ("finite-retention",)
    provider: Provider = WEEK
    now_s: float = 1_000_000.0
    model: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])

    def __post_init__(self) -> None:
        self.cluster = ProviderCluster(self.provider, clock=self.clock)
        self._disk = MemoryDisk(self.clock)
        self.environment = Environment(wall_clock=self.clock)

    def clock(self) -> float:
        """Return the seconds since 1970."""
        return self.now_s

    @property
    def where(self) -> Where:
        """The place, as another process sees it."""
        return Where(MemoryKafka(cluster=self.cluster), MemoryStore(self._disk, "x"), allow_unsafe=self.waived)

    def create(self) -> None:
        """Make the log."""
        Log.create("x", self.where, self.options).close()

    def write(self, key: bytes) -> None:
        """Commit one change."""
        with Log.open("x", self.where) as log, Writer(log, "w") as writer:
            writer.put(key, b"v")
            writer.commit()
        self.model[key] = b"v"

    def roll_up(self, tmp_path: Path, **settings: Any) -> RoundOutcome:
        """Run one round; return its outcome."""
        with Log.open("x", self.where) as log:
            return self.environment.run(run_round, log, replace(settings_for(tmp_path), **settings))

    def read(self) -> dict[Any, Any]:
        """Return the state that a reader finds."""
        with Log.open("x", self.where) as log:
            recovery = self.environment.run(recover, log)
            with recovery:
                return recovery.to_dict()

    def log_start(self, tmp_path: Path) -> Severity:
        """Return the doctor's severity for the log start."""
        found = self.environment.run(examine, "x", self.where, settings_for(tmp_path))
        return next(one.severity for one in found if one.name == "log start")

    def pass_days(self, days: float) -> None:
        """Let time pass; Kafka deletes records that are older than a week."""
        self.now_s += days * DAY_S
        least_ms = (self.now_s - 7 * DAY_S) * 1000
        for topic, partitions in (("x", 2), ("x.ledger", 1)):
            for partition in range(partitions):
                log = self.cluster.log(topic, partition)
                young = [one.offset for one in log.records if one.timestamp_ms >= least_ms]
                self.cluster.truncate(topic, partition, min(young, default=log.end))


def alarms(outcome: RoundOutcome) -> list[dict[str, Any]]:
    """Return the facts of the alarms of a round."""
    return [dict(one.facts) for one in shortfalls("x", outcome, 0.0) if one.kind is EventKind.NEED_AGING]


def test_a_service_that_keeps_nothing_for_ever() -> None:
    """A service that retains nothing for ever needs a waiver of its own; then the log has the service's settings."""
    with pytest.raises(ConfigError, match=r"retention\.ms"), told("is made without"):
        Aging(waived=("min-insync",)).create()
    log = Aging()
    with told("made without retention.ms"):
        log.create()
    with Log.open("x", log.where) as opened:
        assert opened.retention_s == 7 * DAY_S
    log.waived = ()
    with pytest.raises(UnsafeTopic, match=r"retention\.ms is 604800000 and must be -1") as caught:
        Log.open("x", log.where)
    assert "finite-retention" in caught.value.hint


@pytest.fixture
def aging() -> Aging:
    """Return such a log."""
    made = Aging()
    with told("made without"):
        made.create()
    return made


def test_an_idle_log_stays_whole_after_a_clock_that_was_ahead(aging: Aging, tmp_path: Path) -> None:
    """A manifest with a time in the future is renewed at once, and not when that time has come."""
    aging.write(b"a")
    right = aging.environment
    aging.environment = replace(right, wall_clock=lambda: aging.now_s + 365 * DAY_S)
    assert isinstance(aging.roll_up(tmp_path), CompletedRound)
    aging.environment = right
    with Log.open("x", aging.where) as log:
        Writer(log, "w").close()
    for _ in range(20):
        aging.pass_days(0.5)
        aging.roll_up(tmp_path)
    assert aging.read() == aging.model


def test_an_idle_log_stays_whole(aging: Aging, tmp_path: Path) -> None:
    """An idle log stays whole: rounds put manifests without changes now and then, so that no needed record ages out."""
    aging.write(b"a")
    renewed = 0
    for _ in range(40):
        aging.pass_days(0.5)
        outcome = aging.roll_up(tmp_path)
        renewed += isinstance(outcome, CompletedRound)
        assert alarms(outcome) == []
    assert renewed == 20
    assert aging.read() == aging.model
    assert aging.cluster.log("x.ledger", 0).start == aging.cluster.log("x.ledger", 0).end
    aging.write(b"b")
    aging.pass_days(0.5)
    assert aging.read() == aging.model
    aging.roll_up(tmp_path)
    assert aging.read() == aging.model


def test_a_log_that_nobody_wrote_to_stays_whole(aging: Aging, tmp_path: Path) -> None:
    """The mark of a log without writes may age out once a snapshot exists."""
    for _ in range(20):
        aging.pass_days(0.5)
        aging.roll_up(tmp_path)
    aging.write(b"a")
    assert aging.read() == aging.model


def test_what_no_commit_lists_may_age_out(aging: Aging, tmp_path: Path) -> None:
    """Kafka may delete chunks that no commit lists, left by a writer that died: no reader misses them."""
    aging.write(b"a")
    with Log.open("x", aging.where) as log, pytest.warns(UncommittedChanges), Writer(log, "w") as writer:
        for number in range(20):
            writer.put(b"%d" % number, b"lost")
        writer.persist().result()
    for _ in range(20):
        aging.pass_days(0.5)
        assert alarms(aging.roll_up(tmp_path)) == []
    assert aging.log_start(tmp_path) is Severity.OK
    assert aging.read() == aging.model
    for number in range(20):
        aging.write(b"%d" % number)
    aging.pass_days(0.5)
    assert isinstance(aging.roll_up(tmp_path), CompletedRound)
    assert aging.read() == aging.model


def test_rounds_that_stopped_are_told_of_long_before(aging: Aging, tmp_path: Path) -> None:
    """A reader warns after half of the week, and the next round raises an alarm with facts; then all is well."""
    aging.write(b"a")
    aging.roll_up(tmp_path)
    aging.write(b"b")
    aging.pass_days(3)
    assert aging.read() == aging.model
    aging.pass_days(1)
    with told("a commit of 96 h 0 min ago is in no snapshot, and Kafka deletes records after 168 h"):
        assert aging.read() == aging.model
    (alarm,) = alarms(aging.roll_up(tmp_path))
    assert (alarm["age_s"], alarm["retention_s"], alarm["is_gone"]) == (4 * DAY_S, 7 * DAY_S, False)
    assert alarm["held_by"] == "manifest 1"
    assert alarm["topic"] in ("x", "x.ledger")
    later: list[RoundOutcome] = []
    for _ in range(3):
        aging.pass_days(1)
        later.append(aging.roll_up(tmp_path))
    assert alarms(later[-1]) == []
    assert isinstance(aging.roll_up(tmp_path), SkippedRound)
    assert aging.read() == aging.model


def test_a_need_that_aged_out_is_loud(aging: Aging, tmp_path: Path) -> None:
    """A needed record that aged out is a loss like any other, for a reader and a round alike."""
    aging.write(b"a")
    aging.roll_up(tmp_path)
    aging.write(b"b")
    aging.pass_days(8)
    with pytest.raises(OffsetGone):
        aging.read()
    with pytest.raises(DataLoss):
        aging.roll_up(tmp_path)


def test_what_is_kept_for_longer_than_kafka_keeps_its_tail_is_told_of(aging: Aging, tmp_path: Path) -> None:
    """Snapshots are retained for ten days here, and the tails of the older ones age out: the round names them."""
    policy = RetentionPolicy(keep=2, min_age_s=10 * DAY_S)
    aging.write(b"a")
    aging.roll_up(tmp_path, retention=policy)
    aging.write(b"b")
    found: list[list[bool]] = []
    for _ in range(8):
        outcome = aging.roll_up(tmp_path, retention=policy)
        found.append([one["is_gone"] for one in alarms(outcome)])
        aging.pass_days(1)
    assert found == [[], [], [], [], [False], [False], [False], [False]]
    (alarm,) = alarms(aging.roll_up(tmp_path, retention=policy))
    assert (alarm["is_gone"], alarm["held_by"]) == (True, "manifest 1")
    assert aging.read() == aging.model


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lose", [MemoryCluster.lose_tail, MemoryCluster.truncate], ids=["end", "start"])
def test_what_was_given_up_is_no_need(
    lose: Callable[[MemoryCluster, str, int, int], None], aging: Aging, tmp_path: Path
) -> None:
    """Rounds over retained snapshots whose tails were accepted as lost neither fail nor raise an alarm."""
    policy = RetentionPolicy(keep=2, min_age_s=10 * DAY_S)
    with Log.open("x", aging.where) as log:
        beside, (key, *keys) = key_in(log, 1), islice(keys_in(0, 2, log.descriptor.key_groups), 3)
    aging.write(key)
    with Log.open("x", aging.where) as log:
        kept = log.data_offsets()[0].end
    for one in keys:
        aging.roll_up(tmp_path, retention=policy)
        aging.write(one)
    aging.roll_up(tmp_path, retention=policy)
    with Log.open("x", aging.where) as log:
        lost = LossRange(0, kept, log.data_offsets()[0].end)
        lose(aging.cluster, "x", 0, kept if lose is MemoryCluster.lose_tail else lost.end_offset)
        accept_data_loss(log, [lost], reason="a disk died", operator="me")
    assert aging.log_start(tmp_path) is Severity.OK
    with Log.open("x", aging.where) as log, Writer(log, "beside", partitions=[1]) as writer:
        writer.put(beside, b"v")
        writer.commit()
    outcome = aging.roll_up(tmp_path, retention=policy)
    assert isinstance(outcome, CompletedRound)
    assert alarms(outcome) == []
    assert aging.read() == {**aging.model, beside: b"v"}


# ---- truncation="retention"


def counted(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topics of every request to delete records, from now on."""
    asked: list[str] = []
    original = MemoryKafka.delete_records

    def delete_records(self: MemoryKafka, topic: str, before: Any) -> Any:
        asked.append(topic)
        return original(self, topic, before)

    monkeypatch.setattr(MemoryKafka, "delete_records", delete_records)
    return asked


@pytest.mark.parametrize("provider", [WARPSTREAM, MSK_EXPRESS, APACHE], ids=lambda one: str(one.name))
def test_a_log_that_kafka_truncates(provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds put manifests and never delete a record; writers, readers and rounds of others go on for weeks."""
    log = Aging(LogOptions(partitions=2, truncation="retention", retention_days=7), ("min-insync",), provider)
    asked = counted(log.cluster, monkeypatch)
    with lines():
        log.create()
    described = log.cluster.describe("x.ledger")
    assert described is not None
    assert described.config["retention.ms"] == str(7 * 86_400_000)
    for number in range(20):
        log.write(b"%d" % number)
        log.pass_days(1)
        outcome = log.roll_up(tmp_path)
        assert isinstance(outcome, CompletedRound)
        assert (alarms(outcome), outcome.cleanup.records_truncated, outcome.cleanup.records_overdue) == ([], 0, 0)
        assert log.read() == log.model
    assert asked == []
    assert len(log.cluster.records("x.ledger", 0)) < log.cluster.log("x.ledger", 0).end / 2
    with Log.open("x", log.where) as opened:
        assert opened.describe().truncation == opened.truncation() == Truncation.named("retention", 7)
        assert len(opened.manifests.numbers()) == 2


def test_the_hint_of_a_create_without_the_request() -> None:
    """The hint of a create without the request names the way out, as an option of the log."""
    log = Aging(LogOptions(partitions=2), (), WARPSTREAM)
    with pytest.raises(ConfigError, match="DeleteRecords") as caught:
        log.create()
    assert 'truncation="retention"' in caught.value.hint


def test_a_topic_that_keeps_less_than_the_log_was_told(tmp_path: Path) -> None:
    """A topic that retains less than the log's option says is refused by name; one that retains more is accepted."""
    log = Aging(LogOptions(partitions=2, truncation="retention", retention_days=7), (), APACHE)
    log.create()
    for kept_ms in ("-1", str(8 * 86_400_000)):
        log.cluster.set_topic_config("x", {"retention.ms": kept_ms})
        log.write(kept_ms.encode())
        log.roll_up(tmp_path)
    assert log.read() == log.model
    log.cluster.set_topic_config("x", {"retention.ms": "86400000"})
    with pytest.raises(UnsafeTopic, match=r"retention\.ms is 86400000 and must be at least 604800000"):
        log.read()


def test_who_truncates_is_asked_for_with_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked who truncates only when the cluster is asked again. Until then a round that checks for records
    near their deletion does not learn that they are retained.
    """
    log = Aging(LogOptions(partitions=2, truncation="retention", retention_days=7), (), APACHE)
    log.create()
    asked: list[Truncation] = []
    truncation = Log.truncation

    def note(self: Log) -> Truncation:
        assert self.retention_s == 7 * DAY_S
        asked.append(truncation(self))
        return asked[-1]

    monkeypatch.setattr(Log, "truncation", note)
    monkeypatch.setattr(Log, "recheck_s", 3600.0)
    with log.environment.run(Log.open, "x", log.where) as opened:
        assert [opened.verify() for _ in range(3)] == [Truncation.named("retention", 7)] * 3
        assert len(asked) == 1
        assert [opened.verify_now()] == asked[1:]


def test_options_that_differ_are_refused() -> None:
    """Options that differ are refused, for an existing log and for one whose create died."""
    log = Aging(LogOptions(partitions=2, truncation="retention"), (), APACHE)
    log.create()
    for said in (LogOptions(truncation="delete-records"), LogOptions(truncation="retention", retention_days=9)):
        with pytest.raises(ConfigError, match="truncation is retention, 7 days"):
            statelog.open("x", log.where, create=said)
    for agreed in (LogOptions(truncation="retention"), LogOptions(truncation="retention", retention_days=7)):
        statelog.open("x", log.where, create=agreed).close()
    for odd in (
        LogOptions(retention_days=7),
        LogOptions(truncation="never"),
        LogOptions(truncation="retention", retention_days=0),
        LogOptions(truncation="retention", retention_days=1.5),  # type: ignore[call-overload]  # as untyped programs say
        LogOptions(truncation="retention", retention_days="7"),  # type: ignore[call-overload]  # as above
    ):
        with pytest.raises(ConfigError):
            statelog.open("y", log.where, create=odd)


def test_a_log_changes_from_one_to_the_other_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log changes from one mode to the other and back, and a death after any step loses or refuses nothing."""
    log = Aging(LogOptions(partitions=2), (), APACHE)
    log.create()

    def goes_on(key: bytes) -> list[str]:
        log.write(key)
        with monkeypatch.context() as context:
            asked = counted(log.cluster, context)
            for _ in range(3):
                assert isinstance(log.roll_up(tmp_path), CompletedRound | SkippedRound)
                log.write(key)
        assert log.read() == log.model
        return asked

    assert len(goes_on(b"0")) > 3
    with Log.open("x", log.where) as opened, pytest.raises(UnsafeTopic, match="must be at least"):
        log.cluster.set_topic_config("x", {"retention.ms": "1000"})
        opened.set_truncation("retention", 7)
    log.cluster.set_topic_config("x", {"retention.ms": "-1"})
    with Log.open("x", log.where) as opened:
        assert opened.set_truncation("retention", 7) == opened.truncation()
    assert {*goes_on(b"1")} <= {"x", "x.ledger"}
    floor = log.cluster.log("x.ledger", 0).start
    for topic in ("x", "x.ledger"):
        log.cluster.set_topic_config(topic, {"retention.ms": str(7 * 86_400_000)})
        assert goes_on(topic.encode()) == []
    assert log.cluster.log("x.ledger", 0).start == floor
    with Log.open("x", log.where) as opened, pytest.raises(UnsafeTopic, match="must be -1"):
        opened.set_truncation("delete-records")
    for topic in ("x", "x.ledger"):
        log.cluster.set_topic_config(topic, {"retention.ms": "-1"})
        goes_on(topic.encode())
    with Log.open("x", log.where) as opened:
        opened.set_truncation("delete-records")
        assert opened.truncation() == Truncation()
    assert len(goes_on(b"3")) > 3
    assert log.cluster.log("x.ledger", 0).start > floor


def test_a_service_without_the_request_takes_no_other_mode() -> None:
    """A service without the request takes no other mode: the proof comes before the log's file changes."""
    log = Aging(LogOptions(partitions=2, truncation="retention"), (), WARPSTREAM)
    log.create()
    for topic in ("x", "x.ledger"):
        log.cluster.set_topic_config(topic, {"retention.ms": "-1"})
    with Log.open("x", log.where) as opened:
        with pytest.raises(ConfigError, match="DeleteRecords"):
            opened.set_truncation("delete-records")
        assert opened.truncation() == Truncation.named("retention", 7)


def test_what_another_log_was_told_does_not_count(tmp_path: Path) -> None:
    """A file that another create left behind, or that was copied here, does not decide for this log."""
    log = Aging(LogOptions(partitions=2, truncation="retention"), (), APACHE)
    log.create()
    with Log.open("x", log.where) as opened:
        other = replace(opened.descriptor, nonce=bytes(16))
        put_truncation(opened.store, other, Truncation.named("retention", 3))
        assert opened.truncation() == Truncation.named("retention", 7)
        assert [info.path for info in opened.store.list("truncation/")] == [TRUNCATIONS.path(n) for n in (1, 2)]
        path = TRUNCATIONS.path(1)
        for damaged in mutations(opened.store.read(path), spare=RecordCodec("truncation").text.encode()):
            with pytest.raises((CorruptDescriptor, UnknownFormat)):
                Truncation.from_bytes(damaged, path)


def test_a_log_that_kafka_truncates_on_both(rig: LogRig, tmp_path: Path) -> None:
    """No record is deleted of a log that Kafka truncates: made, written, rolled up by restarted daemons, recovered. An
    aged-out record is a loss for readers and daemons.
    """
    model: dict[bytes, bytes] = {}
    Log.create(rig.name, rig.where(), LogOptions(partitions=2, truncation="retention", retention_days=3)).close()
    for number in range(4):
        key = b"%d" % number
        with rig.open() as log, Writer(log, "w") as writer:
            assert log.retention_s == 3 * DAY_S
            writer.put(key, b"v")
            writer.commit({"number": number})
        model[key] = b"v"
        with rig.open() as log:
            outcome = Materializer(log, settings_for(tmp_path)).run_once()
            assert isinstance(outcome, CompletedRound)
            assert alarms(outcome) == []
        with rig.open() as log, recover(log) as recovery:
            assert recovery.to_dict() == model
    with rig.open() as log:
        assert len(log.manifests.numbers()) == 2
        description = log.describe()
        assert description.ledger_offsets.start == 0
        assert {offsets.start for offsets in description.data_offsets.values()} == {0}
        with Writer(log, "w") as writer:
            writer.put(b"k", b"v")
            writer.commit()
        end = log.kafka.offsets(log.ledger_topic, [0])[0].end
        log.kafka.delete_records(log.ledger_topic, {0: end})
    with rig.open() as log:
        with pytest.raises(OffsetGone):
            recover(log).close()
        with pytest.raises(DataLoss):
            Materializer(log, settings_for(tmp_path)).run_once()
