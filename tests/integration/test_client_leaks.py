"""Kafka clients that nobody references any more leave nothing, above all no threads."""

import gc
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from statelog.errors import BrokerUnavailable, UnsafeTopic
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Delivery, OffsetRange, TopicSpec
from statelog.kafka.positions import Listed
from statelog.log import Log, LogOptions, Where
from statelog.log.producers import append_all
from statelog.producer import Writer
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker

_ONE_CLIENT = 3
"""The least number of a client's threads; a connection to a coordinator comes and goes."""


def threads() -> int:
    """Return how many threads this process has."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Threads")).split()[1])


class Leaderless(ConfluentKafka):
    """A view of a cluster in which no partition has a leader; every answer takes a new client."""

    tries = 0

    def _list_offsets(self, topic: str, partitions: Sequence[int], limit_s: float) -> dict[int, Listed]:
        self.tries += 1
        return super()._list_offsets(f"{topic}-is-not-there", partitions, limit_s)

    def _check_partitions(self, topic: str, partitions: Sequence[int]) -> None:
        """Return normally: the partitions exist, without a leader."""


@pytest.mark.broker
def test_waiting_for_a_leader_leaves_no_clients_behind(broker: Broker, topic_name: str) -> None:
    """Each try asks with a new client; the old ones close, with their threads and connections."""
    kafka = Leaderless(client_config({"bootstrap.servers": broker.bootstrap}), request_timeout_s=2.0)
    kafka.cluster_id()
    before = threads()
    with pytest.raises(BrokerUnavailable):
        kafka.offsets(topic_name, [0])

    assert kafka.tries > 1
    assert threads() <= before + 4
    kafka.close()


@pytest.mark.broker
def test_a_log_that_is_refused_leaves_no_client_behind(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A refused or deleted log that is opened again and again, as by a supervisor, costs no threads."""
    kafka, root = {"bootstrap.servers": broker.bootstrap}, str(tmp_path)
    Log.create(log_name, where_at(kafka, root), LogOptions(partitions=1)).close()
    before = threads()
    for _ in range(5):
        with pytest.raises(UnsafeTopic):
            Log.open(log_name, Where(kafka, root))
    Log.delete(log_name, Where(kafka, root))

    assert threads() <= before + 4


@pytest.mark.broker
def test_readers_of_a_lent_client_share_those_that_wait(broker: Broker, topic_name: str) -> None:
    """Readers of a lent client share its waiting consumers, however many readers there are.

    One is cached between two reads, for the next reader; a concurrent reader gets another, which is cached, too. The
    borrowers' ends leave them, and the lender's releases them.
    """
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}), keeps_consumers=True)
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    producer = kafka.producer()
    append_all(producer, topic_name, 0, b"x", 3)
    producer.close()
    before, lent = threads(), [kafka.lend() for _ in range(4)]
    readers = [one.reader(topic_name) for one in lent for _ in range(2)]
    counts: list[int] = []
    for reader in readers:
        assert len(list(reader.read({0: OffsetRange(0, 3)}, stall_timeout_s=30.0))) == 3
        counts.append(threads())
    assert before < max(counts) < min(counts) + _ONE_CLIENT
    both = [reader.read({0: OffsetRange(0, 3)}, stall_timeout_s=30.0) for reader in readers[:2]]
    assert [record.offset for pair in zip(*both, strict=True) for record in pair] == [0, 0, 1, 1, 2, 2]
    for reader in readers:
        reader.close()
    for one in lent:
        one.close()
    assert threads() < min(counts) + 2 * _ONE_CLIENT
    assert len(list(kafka.lend().reader(topic_name).read({0: OffsetRange(1, 3)}, stall_timeout_s=30.0))) == 2
    kafka.close()
    assert threads() <= before


@pytest.mark.broker
def test_clients_that_are_dropped_without_a_close_are_gone(broker: Broker, topic_name: str) -> None:
    """Producers and readers that nobody references any more leave no threads and no connections behind."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))

    def use_and_drop() -> None:
        producer, reader, reports = kafka.producer(), kafka.reader(topic_name), list[Delivery]()
        producer.send(topic_name, 0, b"x", reports.append)
        while not reports:
            producer.poll(0.1)
        assert list(reader.read({0: OffsetRange(reports[0].offset, reports[0].offset + 1)}, stall_timeout_s=60))

    def use_and_be_told() -> None:
        gc.collect()  # objects of earlier tests would warn here
        with pytest.warns(ResourceWarning, match="unclosed (producer|reader)") as told:
            use_and_drop()
            gc.collect()
        assert len(told) == 2

    use_and_be_told()
    before = threads()
    for _ in range(4):
        use_and_be_told()
    assert threads() <= before + 4
    kafka.delete_topic(topic_name)
    kafka.close()


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.broker
def test_a_log_and_a_writer_that_are_forgotten_open_warn(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A forgotten open writer and each open client warn, as open files do; closed ones, also by a `with`, do not."""
    place = where_at(broker.bootstrap, tmp_path)
    Log.create(log_name, place, LogOptions(partitions=1)).close()

    def forget(*, is_closed: bool) -> list[str]:
        gc.collect()  # objects of earlier tests would warn here
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with Log.open(log_name, place) as log, Writer(log, "closed") as writer:
                writer.put(b"k", b"v")
                writer.commit(checkpoint_id=1 + (writer.last_commit.checkpoint.id if writer.last_commit else 0))
            del log, writer
            if not is_closed:
                log = Log.open(log_name, place)
                writer = Writer(log, "forgotten")
                del writer, log
            gc.collect()
        assert {warning.category for warning in told} <= {ResourceWarning}
        return sorted(str(warning.message).partition(" of statelog")[0] for warning in told)

    assert forget(is_closed=True) == []
    assert forget(is_closed=False) == [
        "unclosed Kafka client",
        "unclosed producer",
        "unclosed reader",
        f"unclosed writer forgotten (log {log_name})",
    ]
    Log.delete(log_name, place)
