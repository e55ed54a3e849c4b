"""A part that is interrupted with real signals, dozens of times: what comes out of the Kafka client's calls?

It prints how often each exception came out, as JSON; the signal is `int` or `alarm`. In a loop it sends with callbacks,
polls, asks for offsets and reads; a signal comes some milliseconds after a round begins.
"""

import json
import os
import random
import signal
import threading
from collections import Counter
from types import FrameType
from typing import NoReturn

from statelog.storage.kafka import Delivery, OffsetRange, Producer, Reader
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config

__all__ = ["ROUNDS", "Alarm", "interrupted"]

ROUNDS = 60
_TURNS = 4000


class Alarm(Exception):
    """What this program's handler of SIGALRM raises."""


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
    """Work and be interrupted."""
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
