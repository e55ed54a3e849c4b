"""Both implementations of the Kafka port on missing, lost or old answers, in the same words.

The twin's faults come by its question hook, the real client's by a TCP proxy. After every fault the port is right
again.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from statelog.errors import AlreadyExists, BrokerUnavailable, Fenced, OutcomeUnknown
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Delivery, DeliveryStatus, Kafka, OffsetRange, TopicSpec
from statelog.kafka.positions import HighWater, Listed
from statelog.schemas.outputs.output import Output
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import HALF, LOST, TRUE, UNAVAILABLE, Answer, Call
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.kafka import read_committed
from tests.support.services.faulty_broker import FaultyBroker
from tests.support.services.tcp_proxy import Deed

pytestmark = pytest.mark.xdist_group("faulty broker")

_TIMEOUT_S = 2.0
_APIS = {
    "cluster_id": "describe_cluster", "describe_topic": "describe_configs", "create_topic": "create_topics",
    "delete_topic": "delete_topics", "offsets": "list_offsets", "delete_records": "delete_records",
    "publish_offset": "offset_commit", "published": "offset_fetch",
    "init_transactions": "init_producer_id", "flush": "produce", "send_offsets": "txn_offset_commit",
    "commit_transaction": "end_txn",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One implementation, and a way to make its next `count` calls of a method fail."""

    kafka: Kafka
    fail_before: Callable[[str, int], None]
    fail_after: Callable[[str, int], None]
    halve: Callable[[int], None]
    mend: Callable[[], None]
    committed: Callable[[str], list[Output]]
    """A function that reads the first partition with `read_committed`."""


class _Hook:
    def __init__(self) -> None:
        self.method, self.answer, self.count = "", TRUE, 0

    def set(self, method: str, answer: Answer, count: int) -> None:
        self.method, self.answer, self.count = method, answer, count

    def __call__(self, call: Call) -> Answer:
        if call.method != self.method or self.count == 0:
            return TRUE
        self.count -= 1
        return self.answer


@pytest.fixture(params=["memory", pytest.param("confluent", marks=pytest.mark.broker)])
def bad(request: pytest.FixtureRequest) -> Iterator[Bad]:
    """Yield each implementation in turn."""
    if request.param == "memory":
        hook = _Hook()
        cluster = MemoryCluster(questions=hook)
        yield Bad(
            kafka=MemoryKafka(cluster=cluster),
            fail_before=lambda method, count: hook.set(method, UNAVAILABLE, count),
            fail_after=lambda method, count: hook.set(method, LOST, count),
            halve=lambda count: hook.set("offsets", HALF, count),
            mend=lambda: hook.set("", TRUE, 0),
            committed=lambda topic: cluster.outputs(topic, 0),
        )
        return
    faulty: FaultyBroker = request.getfixturevalue("faulty_broker")
    kafka = ConfluentKafka(
        client_config({"bootstrap.servers": faulty.bootstrap}), request_timeout_s=_TIMEOUT_S, seen=HighWater()
    )
    yield Bad(
        kafka=kafka,
        fail_before=lambda method, count: faulty.proxy.on(_APIS[method], Deed.RESET, count=count),
        fail_after=lambda method, count: faulty.proxy.on(_APIS[method], Deed.LOSE, count=count),
        halve=lambda count: faulty.proxy.on("list_offsets", Deed.RESET, count=count),
        mend=faulty.proxy.reset,
        committed=lambda topic: read_committed(faulty.direct, topic, 0),
    )
    kafka.close()


@pytest.fixture
def topic(bad: Bad) -> str:
    """Return a topic with three records in partition 1."""
    name = f"answers-{uuid.uuid4().hex[:12]}"
    bad.kafka.create_topic(TopicSpec(name=name, partitions=2, replication_factor=1))
    producer, reports = bad.kafka.producer(), list[Delivery]()
    for number in range(3):
        producer.send(name, 1, b"%d" % number, reports.append)
    while len(reports) < 3:
        producer.poll(0.1)
    producer.close()
    assert {report.status for report in reports} == {DeliveryStatus.OK}
    return name


def test_a_half_answer_is_asked_again(bad: Bad, topic: str) -> None:
    """A half answer is asked again: a connection that broke in the middle of an answer costs a request, not the log."""
    for count in (1, 2):
        bad.halve(count)
        assert bad.kafka.offsets(topic, [0, 1]) == {0: OffsetRange(0, 0), 1: OffsetRange(0, 3)}


def test_half_answers_for_ever_are_unavailable(bad: Bad, topic: str) -> None:
    """Half answers for ever are BrokerUnavailable: never an empty log, never a log that ends below zero."""
    bad.halve(10_000)
    with pytest.raises(BrokerUnavailable):
        bad.kafka.offsets(topic, [0, 1])
    bad.mend()
    assert bad.kafka.offsets(topic, [1]) == {1: OffsetRange(0, 3)}


def _calls(kafka: Kafka, topic: str) -> dict[str, Callable[[], object]]:
    return {
        "cluster_id": kafka.cluster_id,
        "describe_topic": lambda: kafka.describe_topic(topic),
        "offsets": lambda: kafka.offsets(topic, [1]),
        "delete_records": lambda: kafka.delete_records(topic, {1: 2}),
        "publish_offset": lambda: kafka.publish_offset("answers", topic, 1, 2, "said"),
        "published": lambda: kafka.published("answers", topic, 1),
        "delete_topic": lambda: kafka.delete_topic(topic),
    }


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_is_unavailable_or_done(bad: Bad, topic: str, when: str) -> None:
    """A failing call either raises BrokerUnavailable or is right at any moment; the same call again is right."""
    fail = bad.fail_before if when == "before" else bad.fail_after
    for method, call in _calls(bad.kafka, topic).items():
        fail(method, 1)
        try:
            first = call()
        except BrokerUnavailable:
            first = None
        bad.mend()
        second = call()
        assert first in (None, second), method
    assert bad.kafka.describe_topic(topic) is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creation_whose_answer_is_lost_is_told(bad: Bad, when: str) -> None:
    """A creation whose answer is lost is created, unavailable or there already, and never falsely created."""
    name = f"answers-{uuid.uuid4().hex[:12]}"
    (bad.fail_before if when == "before" else bad.fail_after)("create_topic", 1)
    spec = TopicSpec(name=name, partitions=1, replication_factor=1)
    try:
        bad.kafka.create_topic(spec)
    except (BrokerUnavailable, AlreadyExists):
        bad.mend()
        try:
            bad.kafka.create_topic(spec)
        except AlreadyExists:
            assert when == "after"
    assert bad.kafka.offsets(name, [0]) == {0: OffsetRange(0, 0)}
    bad.kafka.delete_topic(name)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["init_transactions", "published", "flush", "send_offsets", "commit_transaction"])
def test_a_transaction_is_there_once(bad: Bad, topic: str, step: str, when: str) -> None:
    """Every record is there once if a producer goes on at the stored offset, whichever request failed."""
    name, has_failed = f"outputs-{uuid.uuid4().hex[:12]}", False
    for _ in range(10):
        producer = bad.kafka.output_producer(name, topic)
        try:
            for number in range(max(producer.start().offset, 0) + 1, 4):
                if number == 2 and not has_failed:
                    has_failed = True
                    (bad.fail_before if when == "before" else bad.fail_after)(step, 1)
                    if step in ("init_transactions", "published"):
                        break
                producer.begin()
                producer.send(Output(topic, b"%d" % number, partition=0))
                producer.commit(number)
            else:
                break
        except (BrokerUnavailable, Fenced, OutcomeUnknown):
            continue
        finally:
            producer.close()
    bad.mend()
    assert [record.value for record in bad.committed(topic)] == [b"1", b"2", b"3"]


@pytest.mark.broker
def test_an_old_leaders_end_is_asked_again(faulty_broker: FaultyBroker, topic_name: str) -> None:
    """The real client asks again when its broker answers with the end before two acknowledged records."""

    class Deposed(ConfluentKafka):
        answers = 0

        def _list_offsets(self, topic: str, partitions: list[int], limit_s: float) -> dict[int, Listed]:  # type: ignore[override] # a test's own narrow list
            self.answers += 1
            listed = super()._list_offsets(topic, partitions, limit_s)
            return {p: answer._replace(end=1) for p, answer in listed.items()} if self.answers == 2 else listed

    kafka = Deposed(client_config({"bootstrap.servers": faulty_broker.direct}), seen=HighWater())
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    producer, reports = kafka.producer(), list[Delivery]()
    for _ in range(3):
        producer.send(topic_name, 0, b"x", reports.append)
    while len(reports) < 3:
        producer.poll(0.1)
    producer.close()
    kafka.answers = 1
    assert kafka.offsets(topic_name, [0]) == {0: OffsetRange(0, 3)}
    assert kafka.answers == 3
    kafka.delete_topic(topic_name)
    kafka.close()
