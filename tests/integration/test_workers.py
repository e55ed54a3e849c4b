"""Processes of a group of workers on a real broker: the state is the fold of the input through all joins and deaths."""

import random
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import statelog
from statelog.environment import Environment
from statelog.errors import ConfigError, IdentityChanged, NotFound, OffsetGone
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.tables import Table, Worker, WorkerHooks
from statelog.tables.group import schedule
from tests.sim.source import WORK
from tests.support.processes.group import Group, Member, given
from tests.support.services.broker import Broker
from tests.support.told import told
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
EAGER = {"partition.assignment.strategy": "range"}
QUICK = {"heartbeat.interval.ms": "300", "session.timeout.ms": "6000"}


def test_workers_come_go_and_die(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A worker is joined by another, killed during its work, and back at once; the other leaves: all is exact."""
    consumer = {**COOPERATIVE, **QUICK}
    group = Group(
        name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=3, consumer=consumer
    )  # fmt: skip
    with group.input() as producer:
        group.feed(producer, range(1_000))
        first = group.start("first")
        second = group.start()
        _await_commits(group, partitions=3)
        group.feed(producer, range(1_000, 1_600))
        first.kill()
        first = group.start("first")  # Before the group times it out: with its name it has its partitions again.
        group.check()
        second.end()
        group.feed(producer, range(1_600, 2_000))
        group.await_end(2_000)
        first.end()


def test_what_transactions_leave_behind(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Marks and aborted records behind the last message count as processed, and nobody misses them after deletion."""
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=1, consumer=QUICK)
    with closing(ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))) as kafka, group.input():
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": log_name})
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for _ in range(5):
                producer.produce(group.topic, b"0", partition=0)
            producer.flush()
            end()
        log_end = 12
        # The coordinator answers before it has written the mark of the end.
        wait_for(lambda: kafka.offsets(group.topic, [0])[0].end == log_end)
        with group.worker("", Environment()) as worker:
            for number, (message, table) in enumerate(worker, 1):
                table[b"%d" % number] = message.value() or b""
                if number == 5:
                    threading.Timer(2.0, worker.stop).start()
                    worker.commit_every(0.1)
            assert worker.commit() == {0: log_end}
        kafka.delete_records(group.topic, {0: log_end})
        with group.worker("", Environment()) as worker:
            threading.Timer(2.0, worker.stop).start()
            assert list(worker) == []


def test_a_stopped_process_that_has_the_directory(
    broker: Broker, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process that has the directory blocks nobody: another one goes on next to it, exactly at its progress.

    It uses the directory once it is free; and the stopped one goes on as a member of the group.
    """
    monkeypatch.setattr(schedule, "IN_USE_MAX_S", 1.0)
    group = Group(
        name=log_name,
        bootstrap=broker.bootstrap,
        root=tmp_path / "root",
        partitions=1,
        consumer=QUICK,
        directory=tmp_path / "local",
    )
    home = tmp_path / "local" / "shared"
    with group.input() as producer:
        group.feed(producer, range(100))
        stopped = group.start()
        _await_commits(group, partitions=1)
        stopped.signal(signal.SIGSTOP)
        try:
            with (
                told("a new one is used"),
                group.worker("", Environment(), hooks=WorkerHooks(on_open=_check_given)) as worker,
            ):
                group.feed(producer, range(100, 200))
                for message, table in worker:
                    WORK.step(table, int(message.value() or b""))
                    if message.offset() == 199:
                        break
                    worker.commit_every(0.1)
                assert [path.name[:8] for path in home.glob(".*")] == [".beside-"]
                assert worker.commit() == {0: 200}
                stopped.signal(signal.SIGCONT)
                group.feed(producer, range(200, 300))
            assert list(home.glob(".*")) == []
            group.await_end(300)
        finally:
            stopped.signal(signal.SIGCONT)
        stopped.end()


def test_lag_and_an_input_that_grows(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """The group has the committed positions, for tools that watch its lag.

    Once the topic has more partitions, nothing more is committed.
    """
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=2, consumer=QUICK)
    client = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(client)
    with closing(confluent_kafka.Consumer({**client, "group.id": log_name})) as tool, group.input() as producer:
        group.feed(producer, range(100))
        with group.worker("", Environment()) as worker:
            assert _take(worker, 150).keys() == {0, 1}
            time.sleep(1.1)  # It reads the client's offsets once a second.
            worker.commit()
            assert sum(one.lag or 0 for one in worker.statistics()) == 50
            assert _take(worker, 50) == {0: 100, 1: 100}
        parts = [confluent_kafka.TopicPartition(group.topic, one) for one in range(2)]
        assert [part.offset for part in tool.committed(parts, 30)] == [100, 100]
        group.feed(producer, range(100, 110))
        with pytest.raises(ConfigError, match="it has grown"), group.worker("", Environment()) as worker:
            assert _take(worker, 20) == {0: 110, 1: 110}
            admin.create_partitions([NewPartitions(group.topic, 4)])[group.topic].result()
            group.feed(producer, range(110, 150))
            _take(worker, 80)
    assert group.check() == {0: 110, 1: 110}


def test_tables_of_a_worker_share_clients(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """One more table costs its producer, and no client that queries or reads."""
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=8, consumer=QUICK)
    with group.input() as producer:
        group.feed(producer, range(10))
        with group.worker("", Environment()) as worker:
            next(worker)
            counts = {len(worker.tables): _threads()}
            for _ in worker:
                counts.setdefault(len(worker.tables), _threads())
                if len(worker.tables) == group.partitions:
                    break
            few = min(counts)
            assert _threads() - counts[few] <= 5 * (group.partitions - few) + 4, counts


@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_tables_open_at_once(broker: Broker, log_name: str, tmp_path: Path, is_kept: bool) -> None:
    """Tables that open at once, each waiting half way for another one, in two processes, result in the fold."""
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=8, consumer=QUICK)
    options: dict[str, Any] = {"backend": "rocksdb", "directory": tmp_path / "kept"} if is_kept else {}
    pair = threading.Barrier(2)

    def wait(point: str) -> None:
        if point == "table-open":
            pair.wait(60.0)

    with group.input() as producer:
        for life in (0, 1):
            group.feed(producer, range(life * 50, life * 50 + 50))
            with group.worker("", Environment(crash=wait), **options) as worker:
                assert _take(worker, 400) == dict.fromkeys(range(8), life * 50 + 50)
    assert group.check() == dict.fromkeys(range(8), 100)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_worker_says_what_to_pass(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A worker without a log gets the right call, which `statelog init` is not; `standbys` takes no word but "all"."""
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path, partitions=2, consumer=QUICK)
    with group.input():
        pass
    with pytest.raises(NotFound, match="there is no log") as missing:
        statelog.worker(log_name, group.where, topic=group.topic)
    assert missing.value.hint == "Pass create=True"
    with pytest.raises(ConfigError, match="the input determines the partitions"):
        statelog.worker(log_name, group.where, topic=group.topic, create=statelog.LogOptions(partitions=3))
    options: dict[str, Any] = {"standbys": "some", "create": True}
    with pytest.raises(ConfigError, match=r"no whole number\. Give \"all\", or numbers of partitions"):
        statelog.worker(log_name, group.where, topic=group.topic, **options)


@pytest.mark.soak
def test_what_a_worker_does_not_take(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A log of another shape, a signal within a group's decision, lost and foreign input each raise their own error.

    Where it is allowed the loop goes on.
    """
    group = Group(name=log_name, bootstrap=broker.bootstrap, root=tmp_path / "root", partitions=2, consumer=QUICK)
    with pytest.raises(NotFound, match="no topic"):
        group.worker("", Environment())
    with group.input() as producer:
        group.feed(producer, range(100))
    other = replace(group, root=tmp_path / "other", name=f"{log_name}-other")
    statelog.open(other.name, other.where, create=statelog.LogOptions(partitions=2, key_groups=3)).close()
    with pytest.raises(ConfigError, match="does not fit"):
        statelog.worker(other.name, other.where, topic=group.topic)

    def interrupt(point: str) -> None:
        if point == "revoked":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), group.worker("", Environment(crash=interrupt)) as worker:
        assert _take(worker, 200) == {0: 100, 1: 100}
    with closing(ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))) as kafka:
        group.feed(confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap}), range(100, 110))
        kafka.delete_records(group.topic, {0: 105})
        with group.worker("", Environment()) as worker, pytest.raises(OffsetGone) as gone:
            _take(worker, 20)
        assert gone.value.facts["next_offset"] == 100
        with told("as accept_loss allows"), group.worker("", Environment(), accept_loss=True) as worker:
            assert _take(worker, 15) == {0: 110, 1: 110}
        kafka.delete_topic(group.topic)
        with group.input() as producer:
            group.feed(producer, range(10))
        with group.worker("", Environment()) as worker, pytest.raises(IdentityChanged):
            next(worker)


def _check_given(_: int, table: Table[bytes, bytes]) -> None:
    assert not given(table, table.progress)


def _take(worker: Worker[bytes, bytes], messages: int) -> dict[int, int]:
    """Take so many messages, and commit them."""
    for _, (message, table) in zip(range(messages), worker, strict=False):
        WORK.step(table, int(message.value() or b""))
    return worker.commit()


def _await_commits(group: Group, partitions: int) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            if len(group.progress()) == partitions:
                return
        except Exception:  # noqa: BLE001 - the log is being made
            assert time.monotonic() < deadline_s
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.parametrize("consumer", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("has_standbys", [False, True], ids=["alone", "standbys"])
def test_storm(
    broker: Broker, log_name: str, tmp_path: Path, consumer: dict[str, str], is_kept: bool, has_standbys: bool
) -> None:
    """Under load the state is at any time the fold of the input up to its progress, in a storm of processes.

    One to four of them are killed, stopped for longer than the group waits, or asked to leave, every second or so.
    """
    chance = random.Random()
    group = Group(
        name=log_name,
        bootstrap=broker.bootstrap,
        root=tmp_path / "root",
        partitions=6,
        consumer={**consumer, **QUICK},
        directory=tmp_path / "local" if is_kept else None,
        has_standbys=has_standbys,
    )
    with group.input() as producer:
        members, stopped, told, fed = [group.start()], dict[Member, float](), dict[int, int](), 0
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            group.feed(producer, range(fed, fed + 200))
            fed += 200
            time.sleep(chance.random())
            _act(chance, group, members, stopped)
            for member in [one for one, since_s in stopped.items() if time.monotonic() - since_s > 9]:
                del stopped[member]
                member.signal(signal.SIGCONT)
            for member in members:
                member.check()
            if told or chance.random() < 0.1:
                told = _check_forward(group, told)
        for member in stopped:
            member.signal(signal.SIGCONT)
        members.append(group.start())
        group.await_end(fed)
        for member in members:
            member.end()


def _act(chance: random.Random, group: Group, members: list[Member], stopped: dict[Member, float]) -> None:
    """Do one random thing to a group."""
    running = [member for member in members if member not in stopped]
    what = chance.random()
    if what < 0.35 and len(members) < 4:
        members.append(group.start())
    elif what < 0.55 and len(running) > 1:
        member = chance.choice(running)
        member.kill()
        members.remove(member)
    elif what < 0.7 and len(running) > 1 and len(stopped) < 2:
        member = chance.choice(running)
        stopped[member] = time.monotonic()
        member.signal(signal.SIGSTOP)
    elif what < 0.85 and len(running) > 1:
        member = chance.choice(running)
        members.remove(member)
        member.end()


def _check_forward(group: Group, told: dict[int, int]) -> dict[int, int]:
    """Check that the state is a fold, and that no partition goes back; return the progress."""
    now = group.check()
    assert all(now[partition] >= offset for partition, offset in told.items()), f"{now} after {told}"
    return now
