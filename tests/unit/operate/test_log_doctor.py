"""The log doctor finds each kind of damage to a log on twins, and nothing on a healthy one."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import NotFound
from statelog.kafka.port import TopicDescription
from statelog.log import Log, Where, accept_data_loss
from statelog.materializer.copy import copy_log
from statelog.materializer.round import run_round
from statelog.operate import log_checks
from statelog.operate.examination import _Examination, examine  # pyright: ignore[reportPrivateUsage] # below
from statelog.operate.finding import Finding, Severity, worst
from statelog.operate.log_checks import Check
from statelog.reading.aging import AgingRecord
from statelog.reading.claims import HeldSubscription
from statelog.reading.hold import Hold, Needs, Terms
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.names import LOSSES, MANIFESTS
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.store.port import FileInfo, Store
from statelog.testing.kafka import MemoryKafka, MemoryProducer
from statelog.testing.store import MemoryStore
from tests.support.documents import DOCS
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import UNSAFE, TwinLog, TwinRig, key_in, settings_for, twin_rig
from tests.support.told import told

DAY_S = 86_400.0
WRITES = {
    MemoryKafka: ("create_topic", "delete_topic", "delete_records", "publish_offset", "producer"),
    MemoryProducer: ("send",),
    MemoryStore: ("put_if_absent", "put", "upload", "delete", "check", "sweep", "now_s"),
}


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinLog:
    """Return a log with three snapshots, two of them retained, and a tail. Each partition has changes in both."""
    monkeypatch.setattr(Log, "patience_s", 0.0)
    made = TwinLog(replicas=3)
    with made.open() as log:
        keys = [key_in(log, partition) for partition in range(made.partitions)]
    for number in range(3):
        made.write(dict.fromkeys(keys, b"%d" % number))
        with made.open() as log:
            made.environment.run(run_round, log, settings_for(tmp_path))
    for _ in range(2):
        made.write(dict.fromkeys(keys, b"tail"))
    return made


def examined(
    twin: TwinLog, *, where: Where | None = None, now_s: float | None = None, **how: Any
) -> dict[str, Finding]:
    """Return the findings by name, at the twin's time."""
    settings = settings_for(Path(), subscriptions=SubscriptionCap(idle_s=3600.0))
    environment = Environment(wall_clock=twin.clock if now_s is None else lambda: now_s)
    place = replace(where or twin.where(), allow_unsafe=())
    found = environment.run(examine, twin.name, place, settings, **how)
    assert [one.name for one in found] == list(Check)
    return {one.name: one for one in found}


def bad(found: dict[str, Finding]) -> dict[str, Severity]:
    """Return the findings that are not OK."""
    return {
        name: one.severity
        for name, one in found.items()
        if one.severity is not Severity.OK and one.found != "not asked"
    }


def test_a_healthy_log_has_no_findings(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy log has no findings, and even a deep check writes nothing to either port."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a doctor only reads")

    for port, names in WRITES.items():
        for name in names:
            monkeypatch.setattr(port, name, refuse)
    for deep in (False, True):
        found = examined(twin, deep=deep)
        assert bad(found) == {}
        assert {one.severity for one in found.values()} == {Severity.OK}
        assert {(one.why, one.hint) for one in found.values()} == {("", "")}
    assert found[Check.RUNS].facts["deep"] is True
    assert found[Check.TAIL].facts == {"commits": 2, "changes": 6}
    assert found[Check.LEDGER].facts["accepted_losses"] == 0


def test_a_log_that_was_just_made_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new log has no findings: it has no snapshot, and needs none yet."""
    monkeypatch.setattr(Log, "patience_s", 0.0)
    assert bad(examined(TwinLog(replicas=3))) == {}


def newest_run(twin: TwinLog) -> str:
    """Return the path of a run that the newest manifest names."""
    with twin.open() as log:
        stored = log.manifests.newest()
        assert stored is not None
        return f"log/{stored.runs[-1].path}"


def manifest(number: int) -> str:
    """Return the path of a manifest: 3 is the newest, and 2 the other retained one."""
    return f"log/{MANIFESTS.path(number)}"


def rewrite(twin: TwinLog, path: str, data: bytes) -> None:
    """Overwrite a file."""
    twin.disk.write(path, data, absent=False)


def other_chain(twin: TwinLog) -> None:
    """Copy a manifest of another directory over ours."""
    data = twin.disk.get(manifest(3))
    with twin.open() as log:
        newest = log.manifests.read(3)
    changed = replace(newest, previous_sha256=bytes(32)).to_bytes()
    assert changed != data
    rewrite(twin, manifest(3), changed)


def restored_ledger(twin: TwinLog) -> None:
    """Restore the ledger, and let foreign records grow it beyond its former end."""
    end = twin.cluster.log("log.ledger", 0).end
    twin.cluster.lose_tail("log.ledger", 0, 4)
    append(twin, "log.ledger", end)


def append(twin: TwinLog, topic: str, count: int, partition: int = 0) -> None:
    """Append foreign records."""
    write_all(MemoryKafka(cluster=twin.cluster), topic, partition, [b"somebody's"] * count)


def restored_data(twin: TwinLog) -> None:
    """Let a partition lose its tail and grow again."""
    end = twin.cluster.log("log", 0).end
    twin.cluster.lose_tail("log", 0, 0)
    append(twin, "log", end)


def spoilt_tail(twin: TwinLog) -> None:
    """Damage a batch of the tail so that no client can unpack it."""
    end = twin.cluster.log("log", 1).end
    twin.cluster.spoil("log", 1, end - 1, end)


def torn_chunk(twin: TwinLog) -> None:
    """Replace a chunk of the tail."""
    twin.cluster.overwrite("log", 1, twin.cluster.log("log", 1).end - 1, b"not a chunk")


def corrupt_ledger(twin: TwinLog) -> None:
    """Damage a record of the ledger behind the snapshot."""
    end = twin.cluster.log("log.ledger", 0).end
    value = twin.cluster.records("log.ledger", 0)[-1].value
    twin.cluster.overwrite("log.ledger", 0, end - 1, value[:-1] + bytes([value[-1] ^ 1]))


def lease_of(twin: TwinLog, ttl_s: float = 120.0) -> str:
    """Leave a reader's lease behind, and return its path."""
    environment = Environment(wall_clock=twin.clock)
    hold = Hold(MemoryStore(twin.disk, "log"), Terms("a reader", ttl_s), environment=environment)
    hold.claim(Needs(1, {0: 0}))
    return next(info.path for info in twin.disk.files("log/leases/"))


def stuck_reader(twin: TwinLog) -> None:
    """Let a reader renew its lease without moving on."""
    lease_of(twin, ttl_s=4 * 3600.0)
    twin.now_s += 3 * 3600.0
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(Path(gettempdir())))


def unreadable_lease(twin: TwinLog) -> None:
    """Cut off the end of a lease."""
    twin.disk.truncate(lease_of(twin), 20)


def subscription_of(twin: TwinLog) -> str:
    """Make a reader's subscription at the first retained snapshot, and return its path."""
    with twin.open() as log:
        state = log.manifests.read(2).state
        HeldSubscription(log, "lake", holder_id="1", holder="a query").hold(state, None, take_up=True)
    return next(info.path for info in twin.disk.files("log/subscriptions/"))


def forgotten_reader(twin: TwinLog) -> None:
    """Stop a subscribed reader for longer than the materializer allows."""
    subscription_of(twin)
    twin.now_s += 3601.0
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(Path(gettempdir())))


def unreadable_subscription(twin: TwinLog) -> None:
    """Cut off the end of a subscription."""
    twin.disk.truncate(subscription_of(twin), 20)


def damaged_loss(twin: TwinLog) -> None:
    """Cut off the end of an acceptance of a loss."""
    with twin.open() as log:
        accept_data_loss(log, [LossRange(0, 0, 1)], reason="a disk died", operator="ann")
    twin.disk.truncate(f"log/{LOSSES.path(1)}", 20)


def copied_root(twin: TwinLog) -> None:
    """Copy the root, and publish a round of the copy last."""
    group, text = "statelog.log.materializer", MemoryKafka(cluster=twin.cluster)
    published = text.published(group, "log.ledger", 0).text
    text.publish_offset(group, "log.ledger", 0, 1, published.replace("memory://twin", "memory://elsewhere"))


def full_disk(twin: TwinLog) -> None:
    """Leave no free space."""
    twin.disk.capacity_bytes = twin.disk.used_bytes()


def lagging(count: int) -> Callable[[TwinLog], None]:
    """Take so many replicas of a partition out of sync."""

    def strike(twin: TwinLog) -> None:
        twin.cluster.log("log", 2).lagging = count

    return strike


def setting(topic: str, **settings: str) -> Callable[[TwinLog], None]:
    """Change a setting of a topic."""

    def strike(twin: TwinLog) -> None:
        twin.cluster.set_topic_config(topic, {name.replace("_", "."): value for name, value in settings.items()})

    return strike


def deleted(*topics: str) -> Callable[[TwinLog], None]:
    """Delete topics."""

    def strike(twin: TwinLog) -> None:
        for topic in topics:
            twin.cluster.delete(topic)

    return strike


def no_materializer(twin: TwinLog) -> None:
    """Let hours pass without a materializer."""
    twin.now_s += 2 * 3600.0


def skewed(twin: TwinLog) -> None:
    """Set the brokers' clock ahead, and stop this machine's."""
    twin.now_s += 60.0
    twin.write({b"k": b"later"})
    twin.now_s -= 60.0


def truncated_to_the_end(twin: TwinLog) -> None:
    """Delete all records of a partition, including the tail."""
    twin.cluster.truncate("log", 0, twin.cluster.log("log", 0).end)


def truncated_to_the_newest(twin: TwinLog) -> None:
    """Delete records that only the older one of two snapshots needs."""
    with twin.open() as log:
        twin.cluster.truncate("log.ledger", 0, log.manifests.read(3).position)


D, U, R, N = Severity.DAMAGED, Severity.UNAVAILABLE, Severity.REFUSED, Severity.NOTE
DAMAGES: dict[str, tuple[Callable[[TwinLog], object], dict[Check, Severity]]] = {
    "the data topic lost its tail": (lambda twin: twin.cluster.lose_tail("log", 0, 3), {Check.DATA: D}),
    "the data topic was put back, and grew": (restored_data, {Check.DATA: D}),
    "records of the tail cannot be unpacked": (spoilt_tail, {Check.TAIL: D}),
    "a chunk of the tail is another one": (torn_chunk, {Check.TAIL: D}),
    "records of the tail were deleted": (truncated_to_the_end, {Check.DATA: D, Check.LOG_START: D}),
    "records that an older snapshot needs were deleted": (truncated_to_the_newest, {Check.LOG_START: R}),
    "the ledger lost its tail": (lambda twin: twin.cluster.lose_tail("log.ledger", 0, 4), {Check.LEDGER: D}),
    "the ledger was put back, and grew": (restored_ledger, {Check.LEDGER: D}),
    "a ledger record is damaged": (corrupt_ledger, {Check.LEDGER: D}),
    "the ledger topic is gone": (deleted("log.ledger"), {Check.IDENTITY: D}),
    "the ledger topic was made anew": (lambda twin: twin.cluster.recreate_topic("log.ledger"), {Check.IDENTITY: D}),
    "the data topic is gone": (deleted("log"), {Check.IDENTITY: D}),
    "the data topic was made anew": (lambda twin: twin.cluster.recreate_topic("log"), {Check.IDENTITY: D}),
    "another cluster answers": (lambda twin: setattr(twin.cluster, "cluster_id", "other"), {Check.IDENTITY: D}),
    "no broker answers": (lambda twin: twin.cluster.set_down(is_down=True), {Check.IDENTITY: U}),
    "a run is gone": (lambda twin: twin.disk.remove(newest_run(twin)), {Check.RUNS: D}),
    "a run was cut off": (lambda twin: twin.disk.truncate(newest_run(twin), 100), {Check.RUNS: D}),
    "a byte of a run flipped": (lambda twin: twin.disk.flip_byte(newest_run(twin), 40), {Check.RUNS: D}),
    "the newest manifest is damaged": (lambda twin: twin.disk.flip_byte(manifest(3), -30), {Check.MANIFESTS: D}),
    "an older manifest is damaged": (lambda twin: twin.disk.flip_byte(manifest(2), -30), {Check.MANIFESTS: D}),
    "a manifest of another chain": (other_chain, {Check.MANIFESTS: D}),
    "the descriptor is gone": (lambda twin: twin.disk.remove("log/descriptor.avro"), {Check.DESCRIPTOR: D}),
    "the descriptor is damaged": (lambda twin: twin.disk.flip_byte("log/descriptor.avro", -30), {Check.DESCRIPTOR: D}),
    "Kafka deletes by age": (setting("log", retention_ms="1000"), {Check.TOPICS: R}),
    "Kafka compacts": (setting("log.ledger", cleanup_policy="compact"), {Check.TOPICS: R}),
    "unclean elections": (setting("log", unclean_leader_election_enable="true"), {Check.TOPICS: R}),
    "a replica is behind": (lagging(1), {Check.IN_SYNC: N}),
    "too few replicas are in sync": (lagging(2), {Check.IN_SYNC: U}),
    "no round completes": (no_materializer, {Check.AGE: R}),
    "the root was copied": (copied_root, {Check.ROOT: R}),
    "a reader is stuck": (stuck_reader, {Check.LEASES: N}),
    "a lease is damaged": (unreadable_lease, {Check.LEASES: N}),
    "a reader was forgotten": (forgotten_reader, {Check.SUBSCRIPTIONS: N}),
    "a subscription is damaged": (unreadable_subscription, {Check.SUBSCRIPTIONS: R}),
    "files that nothing knows": (lambda twin: rewrite(twin, "log/notes.txt", b"x"), {Check.FILES: N}),
    "who accepted a loss is damaged": (damaged_loss, {Check.LOSSES: D}),
    "the disk is full": (full_disk, {Check.ROOM: R}),
    "clocks are apart": (skewed, {Check.CLOCKS: N}),
}  # fmt: skip


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_has_its_finding(twin: TwinLog, damage: str) -> None:
    """Each damage has exactly one finding, with why it matters and what to do."""
    strike, expected = DAMAGES[damage]
    strike(twin)
    if damage == "a lease is damaged":
        with told("cannot be read"):
            found = examined(twin, deep=True)
    else:
        found = examined(twin, deep=True)
    assert bad(found) == expected
    for check in expected:
        assert found[check].found
        assert found[check].why == check.why
        assert found[check].hint, check
    assert worst(found.values()) is max(expected.values(), key=list(Severity).index)


def test_a_run_that_nothing_names(twin: TwinLog) -> None:
    """An unnamed run is no finding for a day, since a round may be under way."""
    rewrite(twin, "log/runs/left.parquet", b"x")
    assert bad(examined(twin)) == {}
    found = examined(twin, now_s=twin.now_s + DAY_S + 1)
    assert found[Check.FILES].severity is Severity.NOTE
    assert "runs/left.parquet" in found[Check.FILES].found


@pytest.mark.usefixtures("busy_ledger")
def test_a_commit_of_many_pieces(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit's pieces, tasks times partitions, are counted, and noted before they cost readers and rounds much."""
    assert examined(twin)[Check.AGE].facts["commit_pieces"] == twin.partitions
    monkeypatch.setattr(log_checks, "MANY_PIECES", twin.partitions)
    found = examined(twin)
    assert bad(found) == {Check.AGE: Severity.NOTE}
    assert f"one has {twin.partitions} pieces" in found[Check.AGE].found
    assert "repartition_by_key_group" in found[Check.AGE].hint


def test_a_copy_that_is_not_finished(twin: TwinLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished copy is closed and not damaged, before and after its first round."""
    rig = twin_rig("copy", cluster=twin.cluster, disk=twin.disk, replicas=3)
    with twin.open() as log:
        twin.environment.run(copy_log, log, "copy", rig.where(), settings=settings_for(tmp_path))
    copy = replace_name(twin, rig)
    assert bad(examined(copy, where=rig.where())) == {Check.LEDGER: Severity.NOTE}


def replace_name(twin: TwinLog, rig: TwinRig) -> TwinLog:
    """Point the twin at the other log of the cluster."""
    twin.name = rig.name
    return twin


def test_a_name_without_a_log(twin: TwinLog) -> None:
    """Examining a name without a log raises NotFound, since there is nothing to check."""
    with pytest.raises(NotFound):
        examine("other", replace(twin_rig("other", cluster=twin.cluster, disk=twin.disk).where(), allow_unsafe=UNSAFE),
                settings_for(Path()))  # fmt: skip


def test_a_check_that_fails_is_a_finding(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one check is a finding, and hides none of the others."""

    def fail(_: Store, __: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("statelog.operate.examination.list_leases", fail)
    twin.disk.remove(newest_run(twin))
    found = examined(twin)
    assert bad(found) == {Check.RUNS: Severity.DAMAGED, Check.LEASES: Severity.UNAVAILABLE}
    assert "ZeroDivisionError" in found[Check.LEASES].found


@pytest.mark.parametrize("behind", [Check.MANIFESTS, Check.RUNS, Check.LEDGER, Check.DATA, None])
def test_rounds_that_outrun_a_doctor_are_no_damage(
    twin: TwinLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: Check | None
) -> None:
    """Objects that concurrent rounds drop, truncate or delete after any check are not reported missing."""
    asked, checks = _Examination._asked, iter(Check)  # pyright: ignore[reportPrivateUsage] # there is no other moment

    def then_rounds(examination: _Examination, ask: Any) -> Any:
        answer, check = asked(examination, ask), next(checks)
        for number in range(3 if behind in (None, check) else 0):
            twin.write({b"k%d" % number: check.encode()})
            with twin.open() as log:
                twin.environment.run(run_round, log, settings_for(tmp_path))
        return answer

    monkeypatch.setattr(_Examination, "_asked", then_rounds)
    assert bad(examined(twin, deep=True)) == {}


def test_the_store_is_only_tried_when_asked_to(twin: TwinLog) -> None:
    """Whether the store overwrites is tested only on request, with two temporary files, which are removed."""
    before = {info.path for info in twin.disk.files("")}
    assert bad(examined(twin, proves=True)) == {}
    twin.disk.honours_absence = False
    assert bad(examined(twin, proves=True)) == {Check.STORE: Severity.REFUSED}
    assert {info.path for info in twin.disk.files("")} == before


def test_who_holds_what_is_listed_once(twin: TwinLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holders of truncation are listed once for all checks, also where Kafka deletes by age."""
    with twin.open() as log:
        log.set_truncation("retention", 7)
    for topic in ("log", "log.ledger"):
        twin.cluster.set_topic_config(topic, {"retention.ms": str(7 * 86_400_000)})
    lease_of(twin)
    subscription_of(twin)
    asked: list[str] = []
    real = MemoryStore.list

    def noting(store: MemoryStore, prefix: str = "") -> Iterator[FileInfo]:
        asked.append(prefix)
        return real(store, prefix)

    monkeypatch.setattr(MemoryStore, "list", noting)
    found = examined(twin)
    assert "for lease" in found[Check.AGING].found  # This reader's needs are invented: they were truncated before.
    assert asked.count("leases/") == 1
    assert asked.count("subscriptions/") == 2  # Listing files that move takes two tries.


def test_the_page_has_every_check_and_every_damage() -> None:
    """The page has every check and every damage by name, in their order."""
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    looked_at, found = page.split("## What it looks at")[1].split("## What it finds")
    assert _rows(looked_at) == [check.value for check in Check]
    assert _rows(found) == list(DAMAGES)
    for name, (_, expected) in DAMAGES.items():
        findings = ", ".join(f"{check.value}: {severity.value}" for check, severity in expected.items())
        assert f"| {name} | {findings} |" in found


def _rows(text: str) -> list[str]:
    return re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)[1:]


@pytest.mark.parametrize(
    ("age_s", "is_gone", "severity"), [(10.0, False, "ok"), (60.0, False, "refused"), (10.0, True, "damaged")]
)
def test_what_is_needed_where_kafka_deletes_by_age(age_s: float, is_gone: bool, severity: str) -> None:
    """Records that are needed alarm at half of Kafka's retention time, and are a loss once deleted.

    Without retention neither happens.
    """
    need = AgingRecord(
        topic="log", partition=1, offset=7, held_by="manifest 2", age_s=age_s, retention_s=100.0, is_gone=is_gone
    )
    assert log_checks.of_aging(need, 100.0).severity.value == severity
    assert log_checks.of_aging(None, 100.0).severity is Severity.OK
    assert log_checks.of_aging(None, None).severity is Severity.OK


def test_what_nobody_tells_is_no_finding() -> None:
    """Unknown facts are no findings: the room of a bucket, or replicas that a service hides. Little room is a note."""
    assert log_checks.of_room(None, 1000).severity is Severity.OK
    assert [log_checks.of_room(free, 1000).severity for free in (2000, 1500, 1000)] == [Severity.OK, N, R]
    topic = TopicDescription(name="t", topic_id="t", partitions=1, replication_factor=3, config={})
    assert log_checks.of_in_sync([topic]).found == "unknown: the brokers do not tell"


def test_only_the_first_few_are_named() -> None:
    """Only the first few items are named, with the number of the others."""
    assert log_checks.shown([1, 2, 3]) == "1, 2, 3"
    assert log_checks.shown([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"
