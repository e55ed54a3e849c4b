"""Producers that end by a fatal error of the client: typed from every call, resolved, and exact afterwards."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from statelog.errors import BrokerUnavailable, ClosedError, StatelogError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Delivery, DeliveryStatus, TopicSpec
from statelog.kafka.producer import ConfluentProducer
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.writer import Writer
from statelog.store.fsspec import open_store
from statelog.tables import Standby
from statelog.testing.faults import Fate, ScriptedFaults
from tests.support.processes.starts import in_fork
from tests.support.rigs.log import LogRig, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.services.broker import Broker

_OUT_OF_ORDER_SEQUENCE_NUMBER = 45


def make_fatal(producer: object) -> None:
    """Put the client of a `ConfluentProducer` that has sent into its fatal state, as a lost tail does."""
    native = vars(producer)["_client"].native
    assert isinstance(native, confluent_kafka.Producer)
    libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    (path,) = libraries.glob("librdkafka*.so*")
    call = ctypes.CDLL(str(path)).rd_kafka_test_fatal_error
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    # The object's first field behind Python's own two is the client's handle.
    handle = ctypes.c_void_p.from_address(id(native) + 2 * ctypes.sizeof(ctypes.c_void_p))
    assert call(handle, _OUT_OF_ORDER_SEQUENCE_NUMBER, b"the tail of the log was lost") == 0


class Remembering(ConfluentKafka):
    """A Kafka port that remembers the producers that it made, so that a test can end them."""

    made: list[ConfluentProducer]

    def producer(self) -> ConfluentProducer:
        """Return a producer, and remember it."""
        self.made = [*getattr(self, "made", []), super().producer()]
        return self.made[-1]


@pytest.fixture
def real(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[tuple[LogRig, Remembering]]:
    """Yield a log on the broker, all of whose producers one object makes."""
    kafka = Remembering(client_config({"bootstrap.servers": broker.bootstrap}))
    yield LogRig(log_name, lambda: kafka, lambda: open_store(str(tmp_path), log_name)), kafka
    kafka.close()


def _commit(writer: Writer, kafka: Remembering) -> None:
    writer.put(b"b", b"2")
    make_fatal(kafka.made[-1])
    writer.commit(checkpoint_id=2)


def _confirm(writer: Writer, kafka: Remembering) -> None:
    writer.put(b"b", b"2")
    handle = writer.persist(2).result()
    make_fatal(kafka.made[-1])
    writer.confirm(handle)


def _close(writer: Writer, kafka: Remembering) -> None:
    writer.put(b"b", b"2")
    writer.persist(2).result()
    make_fatal(kafka.made[-1])
    with pytest.warns(UserWarning, match="uncommitted"):
        writer.close()


@pytest.mark.broker
@pytest.mark.parametrize("call", [_commit, _confirm, _close])
def test_a_really_fatal_error_stays_in_the_tree(
    real: tuple[LogRig, Remembering], call: Callable[[Writer, Remembering], None]
) -> None:
    """In the client's fatal state every writer call raises an error of ours or none; the next incarnation is exact."""
    rig, kafka = real
    log = rig.create(partitions=1)
    writer = Writer(log, "w")
    writer.put(b"a", b"1")
    writer.commit(checkpoint_id=1)
    try:
        call(writer, kafka)
        told = call is not _close
    except StatelogError:
        told = False
    writer.close()
    with Writer(log, "w") as again:
        assert again.last_commit is not None
        landed = again.last_commit.checkpoint.id
        assert landed == 2 if told else landed in {1, 2}
        again.put(b"c", b"3")
        again.commit(checkpoint_id=landed + 1)
        assert again.last_commit.checkpoint.id == landed + 1


@pytest.mark.broker
def test_a_producer_made_ahead_that_is_over(real: tuple[LogRig, Remembering]) -> None:
    """A standby's spare producer that failed while idle, or in a fork, is replaced at the promotion."""
    rig, kafka = real
    with TableRig(rig, None).open() as table, TableRig(rig, None).standby() as standby:
        table[b"a"] = b"1"
        table.commit()
        spare = kafka.made[-1]
        assert in_fork(lambda: _check_none_to_take(standby)) == 0
        assert spare.is_sound
        make_fatal(spare)
        with standby.promote() as promoted:
            assert dict(promoted) == {b"a": b"1"}
            promoted[b"b"] = b"2"
            promoted.commit()
            assert kafka.made[-1] is not spare
            with pytest.raises(ClosedError):
                spare.poll(0)


def _check_none_to_take(standby: Standby[bytes, bytes]) -> None:
    assert vars(standby)["_setup"].log.warm_producer.take(time.monotonic()) is None
    standby.close()


@pytest.mark.broker
def test_what_is_in_flight_is_unknown(broker: Broker) -> None:
    """Every record in flight is reported once as unknown; later sends are refused, and closing reports nothing more."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    producer, reports = kafka.producer(), list[Delivery]()
    for _ in range(10):
        producer.send("no-such-topic", 0, b"x", reports.append)
    make_fatal(producer)
    for _ in range(20):
        producer.poll(0.05)
    assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN] * 10
    assert producer.in_flight == 0
    with pytest.raises(BrokerUnavailable, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        producer.send("no-such-topic", 0, b"x", reports.append)
    producer.close()
    producer.close()
    kafka.close()
    assert len(reports) == 10


@pytest.mark.broker
def test_a_fatal_error_does_not_end_the_others(broker: Broker, topic_name: str) -> None:
    """A producer without records in flight continues with another client; one with an unknown outcome does not."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1, config={}))
    ended, other, reports = kafka.producer(), kafka.producer(), list[Delivery]()
    assert other.send(topic_name, 0, b"1", reports.append)
    _wait_for_report(other, reports)
    ended.send("no-such-topic", 0, b"x", reports.append)
    assert vars(ended)["_client"] is vars(other)["_client"]
    make_fatal(ended)
    _wait_for_report(ended, reports)
    assert other.send(topic_name, 0, b"2", reports.append)
    _wait_for_report(other, reports)
    assert [report.status for report in reports] == [DeliveryStatus.OK, DeliveryStatus.UNKNOWN, DeliveryStatus.OK]
    with pytest.raises(BrokerUnavailable, match="the producer is over"):
        ended.send(topic_name, 0, b"3", reports.append)
    for one in (ended, other):
        one.close()
    kafka.delete_topic(topic_name)
    kafka.close()


def _wait_for_report(producer: ConfluentProducer, reports: list[Delivery]) -> None:
    count, until_s = len(reports) + 1, time.monotonic() + 30
    while len(reports) < count:
        producer.poll(0.05)
        assert time.monotonic() < until_s, "no report came"


def _story(rig: LogRig, told: list[int]) -> None:
    """Commit by a writer and by a coordinator with a task; `told` gets the writer's acknowledged checkpoints."""
    with rig.open() as log:
        writer = Writer(log, "w")
        try:
            for checkpoint in (1, 2):
                writer.put(b"k%d" % checkpoint, b"v")
                writer.commit(checkpoint_id=checkpoint)
                told.append(checkpoint)
        finally:
            writer.close()
        coordinator, producer = Coordinator(log, "c"), log.kafka.producer()
        try:
            task = TaskWriter(producer, coordinator.task(1), slot=0)
            task.put(b"t", b"v")
            coordinator.commit([task.finish()], {}, checkpoint_id=1)
        finally:
            producer.close()
            coordinator.close()


@pytest.mark.parametrize("fate", [Fate.FATAL, Fate.FATAL_APPENDED])
@pytest.mark.parametrize("number", range(9))
def test_a_fatal_error_at_any_send_is_typed_and_settled(fate: Fate, number: int) -> None:
    """A fatal error at any send is typed: only our errors are raised, and acknowledged commits are there."""
    rig = twin_rig("f")
    rig.create(partitions=1).close()
    first = rig.cluster.sends
    rig.cluster.faults = ScriptedFaults(fates={first + number: fate})
    told = [0]
    with suppress(StatelogError):
        _story(rig, told)
    with rig.open() as log, Writer(log, "w") as again:
        assert (again.last_commit.checkpoint.id if again.last_commit else 0) >= told[-1]
