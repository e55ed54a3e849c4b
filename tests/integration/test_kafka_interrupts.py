"""Real signals at any point in the native client: their handlers' exceptions come out unchanged.

`interrupted` is a process that sends with callbacks, polls, queries offsets and reads in a loop; a signal comes some
milliseconds after a round begins.
"""

import json
import os
import random
import signal
import threading
from collections import Counter
from types import FrameType
from typing import NoReturn

import pytest

from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Delivery, OffsetRange, Producer, Reader, TopicSpec
from tests.support.processes.parts import output
from tests.support.services.broker import Broker

ROUNDS = 60
_TURNS = 4000


class Alarm(Exception):
    """The exception of this program's handler of SIGALRM."""


def _raise_alarm(signum: int, frame: FrameType | None) -> NoReturn:
    raise Alarm


def _work(kafka: ConfluentKafka, producer: Producer, reader: Reader, topic: str) -> None:
    reports: list[Delivery] = []
    for turn in range(_TURNS):
        producer.send(topic, 0, b"x", reports.append)
        producer.poll(0.02)
        if turn % 4 == 3:
            end = kafka.offsets(topic, [0])[0].end
            for _ in reader.read({0: OffsetRange(max(0, end - 3), end)}, stall_timeout_s=60):
                pass


def interrupted(bootstrap: str, topic: str, which: str) -> None:
    """Work until a signal interrupts."""
    signal.signal(signal.SIGALRM, _raise_alarm)
    sent = signal.SIGINT if which == "int" else signal.SIGALRM
    kafka = ConfluentKafka(client_config({"bootstrap.servers": bootstrap}))
    chance, out = random.Random(7), Counter[str]()
    producer, reader = kafka.producer(), kafka.reader(topic)
    for _ in range(ROUNDS):
        timer = threading.Timer(chance.uniform(0.005, 0.04), os.kill, (os.getpid(), sent))
        try:
            timer.start()
            _work(kafka, producer, reader, topic)
        except BaseException as error:  # noqa: BLE001 - whatever comes out is what the test wants to know
            out[type(error).__name__] += 1
        timer.join()
    producer.close()
    reader.close()
    kafka.close()
    print(json.dumps(out))  # noqa: T201 - what the test reads


@pytest.mark.broker
@pytest.mark.parametrize(("which", "wanted"), [("int", "KeyboardInterrupt"), ("alarm", "Alarm")])
def test_a_signal_comes_out_as_what_its_handler_raised(
    broker: Broker, topic_name: str, which: str, wanted: str
) -> None:
    """Dozens of signals, in sends with callbacks, polls, queries and reads, are never a SystemError, and never lost."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    printed = output(interrupted, broker.bootstrap, topic_name, which, timeout_s=120.0)
    kafka.delete_topic(topic_name)
    kafka.close()
    assert json.loads(printed) == {wanted: ROUNDS}
