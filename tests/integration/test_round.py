"""Rounds on a real broker and the local file system: truncation that really happens, races, and refusals by type."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statelog.environment import Environment
from statelog.errors import IdentityChanged, OffsetGone
from statelog.kafka.port import TopicSpec
from statelog.log import Log, LogOptions
from statelog.materializer.outcome import CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from tests.support.rigs.log import settings_for, state_of, where_at
from tests.support.samples.folds import apply_all, put_all
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker
State = dict[object, object]


def _open(broker: Broker, name: str, root: Path) -> Log:
    return Log.open(name, where_at(broker.bootstrap, root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of the logs' directories."""
    return tmp_path / "root"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the scratch directory of rounds."""
    path = tmp_path / "scratch"
    path.mkdir()
    return path


@pytest.fixture
def log(broker: Broker, log_name: str, root: Path) -> Iterator[Log]:
    """Yield a new log of four partitions."""
    with Log.create(
        log_name,
        where_at(broker.bootstrap, root),
        LogOptions(partitions=4, key_groups=16),
    ) as made:
        yield made


def _write(log: Log, model: State, turn: int) -> None:
    """Commit 200 changes, a quarter of them deletes, and apply them to the model."""
    with Writer(log, "writer") as out:
        values = [None if i % 4 == 0 else b"%d.%d" % (turn, i) for i in range(200)]
        changes = [(b"k%d" % ((turn * 37 + i) % 500), value) for i, value in enumerate(values)]
        put_all(out, changes)
        apply_all(model, changes)
        out.commit(checkpoint_id=turn + 1)


def _group_offset(broker: Broker, log: Log) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    group = f"statelog.{log.name}.materializer"
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(log.ledger_topic, 0)])
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    assert found.topic_partitions is not None
    return found.topic_partitions[0].offset


def test_rounds_truncate_merge_retain_and_publish(broker: Broker, log: Log, root: Path, scratch: Path) -> None:
    """The state is the model after each round; the log starts at the end of the oldest of two retained snapshots."""
    model: State = {}
    settings = settings_for(scratch, fanout=3)
    merged = 0
    for turn in range(5):
        _write(log, model, turn)
        outcome = run_round(log, settings)
        assert isinstance(outcome, CompletedRound)
        merged += outcome.runs_merged
        assert state_of(log) == model
        assert _group_offset(broker, log) == outcome.position
    assert merged >= 3
    assert isinstance(run_round(log, settings), SkippedRound)

    numbers = log.manifests.numbers()
    assert numbers == [4, 5]
    oldest = log.manifests.read(4)
    assert {p: there.start for p, there in log.data_offsets().items()} == oldest.next_offsets
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start == oldest.position
    assert state_of(log, min) == model
    kept = {run.path for number in numbers for run in log.manifests.read(number).runs}
    assert {info.path for info in log.store.list("runs/")} == kept


def test_two_materializers_at_once_are_only_wasteful(broker: Broker, log: Log, root: Path, scratch: Path) -> None:
    """Two concurrent materializers leave one winner for each slot and the right state; the other one loses."""
    model: State = {}
    settings = settings_for(scratch)
    logs = [_open(broker, log.name, root) for _ in range(2)]
    outcomes: list[RoundOutcome] = []
    try:
        for turn in range(4):
            _write(log, model, turn)
            barrier = threading.Barrier(2)

            def wait_at_the_put(name: str, barrier: threading.Barrier = barrier) -> None:
                if name == "after-list":
                    barrier.wait(60)

            def race(mine: Log) -> None:
                outcomes.append(Environment(crash=wait_at_the_put).run(run_round, mine, settings))

            threads = [threading.Thread(target=race, args=(mine,)) for mine in logs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            assert state_of(log) == model
    finally:
        for mine in logs:
            mine.close()
    assert [type(outcome) for outcome in outcomes].count(CompletedRound) == 4
    assert [type(outcome) for outcome in outcomes].count(LostRound) == 4
    assert log.manifests.numbers()[-1] == 4


def test_a_round_saves_what_kafka_is_about_to_delete(
    broker: Broker, log: Log, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After an operator set a retention time, the next round warns, and holds the records that Kafka deletes later."""
    model: State = {}
    _write(log, model, 0)
    before = log.kafka.describe_topic(log.data_topic)
    assert before is not None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, log.data_topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    wait_for(lambda: log.kafka.describe_topic(log.data_topic) != before)
    outcome = run_round(log, settings_for(scratch))
    assert isinstance(outcome, CompletedRound)
    assert "retention.ms is 86400000" in outcome.deletions
    assert [line.levelname for line in caplog.records if "Kafka deletes what is committed" in line.message] == ["ERROR"]
    log.kafka.delete_records(log.data_topic, {partition: end for partition, (_, end) in log.data_offsets().items()})
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, log.data_topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    wait_for(lambda: log.kafka.describe_topic(log.data_topic) == before)
    assert state_of(log) == model


def test_a_recreated_topic_stops_the_round(log: Log, scratch: Path) -> None:
    """A data topic that is deleted and re-created under its name stops the round by its id; none of it is ours."""
    _write(log, {}, 0)
    found = log.kafka.describe_topic(log.data_topic)
    assert found is not None
    log.kafka.delete_topic(log.data_topic)
    spec = TopicSpec(name=log.data_topic, partitions=4, replication_factor=1, config={"cleanup.policy": "delete"})
    log.kafka.create_topic(spec)
    with pytest.raises(IdentityChanged):
        run_round(log, settings_for(scratch))


@pytest.mark.parametrize("which", ["data", "ledger"])
def test_records_that_somebody_truncated_are_a_typed_loss(which: str, log: Log, scratch: Path) -> None:
    """Truncation by somebody else above the newest snapshot's needs is OffsetGone with the topic, and no put."""
    model: State = {}
    settings = settings_for(scratch)
    _write(log, model, 0)
    run_round(log, settings)
    _write(log, model, 1)
    topic = log.data_topic if which == "data" else log.ledger_topic
    ends = log.kafka.offsets(topic, range(4) if which == "data" else [0])
    log.kafka.delete_records(topic, {p: there.end for p, there in ends.items()})
    with pytest.raises(OffsetGone) as lost:
        run_round(log, settings)
    assert lost.value.facts["topic"] == topic
    assert log.manifests.numbers() == [1]
