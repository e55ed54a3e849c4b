"""Real signals, wherever they land in the native client: their handlers' exceptions come out as themselves."""

import json

import pytest

from statelog.storage.kafka import TopicSpec
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config
from tests.support.processes.interrupted import ROUNDS
from tests.support.processes.parts import output
from tests.support.services.broker import Broker


@pytest.mark.broker
@pytest.mark.parametrize(("which", "wanted"), [("int", "KeyboardInterrupt"), ("alarm", "Alarm")])
def test_a_signal_comes_out_as_what_its_handler_raised(
    broker: Broker, topic_name: str, which: str, wanted: str
) -> None:
    """Dozens of signals, in sends with callbacks, polls, questions and reads: never a SystemError, never lost."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    printed = output("interrupted", broker.bootstrap, topic_name, which, timeout_s=120.0)
    kafka.delete_topic(topic_name)
    kafka.close()
    assert json.loads(printed) == {wanted: ROUNDS}
