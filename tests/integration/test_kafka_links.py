"""The real client on slow links, and with dead connections: it goes on, and in time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import OffsetRange, TopicSpec
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from tests.support.rigs.log import real_rig
from tests.support.services.faulty_broker import FaultyBroker

pytestmark = pytest.mark.broker


def test_a_slow_link_is_waited_for(faulty_broker: FaultyBroker, log_name: str, tmp_path: Path) -> None:
    """A link that needs three seconds for a send goes on, where a second and a half without a report would fail."""
    log = real_rig(log_name, faulty_broker.bootstrap, tmp_path).create(partitions=1)
    settings = WriterSettings(_tuning=WriterTuning(chunk_bytes=64 << 10, roll_bytes=256 << 10, stall_timeout_s=1.5))
    with log, Writer(log, "w", settings=settings) as writer:
        faulty_broker.proxy.bytes_per_s = 1_000_000
        began = time.monotonic()
        for number in range(60):
            writer.put(b"%d" % number, os.urandom(50_000))
        writer.commit(checkpoint_id=1)
        assert time.monotonic() - began > 2
        faulty_broker.proxy.reset()


def test_a_client_whose_broker_is_gone_is_replaced(faulty_broker: FaultyBroker, topic_name: str) -> None:
    """With every open connection silently dead and new ones alive each call is right within its time."""
    limit_s = 9.0  # A quarter of it goes to the dead connection each time; the rest is for a busy machine.
    kafka = ConfluentKafka(client_config({"bootstrap.servers": faulty_broker.bootstrap}), request_timeout_s=limit_s)
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    calls: tuple[Callable[[], bool], ...] = (
        lambda: kafka.cluster_id() != "",
        lambda: kafka.describe_topic(topic_name) is not None,
        lambda: kafka.offsets(topic_name, [0]) == {0: OffsetRange(0, 0)},
        lambda: kafka.delete_records(topic_name, {0: 0}) == {0: 0},
    )
    for call in calls:
        assert call()
        faulty_broker.proxy.freeze()
        began = time.monotonic()
        assert call()
        assert time.monotonic() - began < limit_s + 3
        faulty_broker.proxy.cut_all()
    kafka.delete_topic(topic_name)
    kafka.close()
