"""Log lines of Kafka's client go to `logging` and nowhere else, also without a broker."""

import logging
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin

from statelog.kafka.config import (
    ClientConfig,
    admin_properties,
    client_config,
    consumer_properties,
    producer_properties,
)
from statelog.kafka.native import make_client, native

NOBODY = client_config({"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": "100"})
PROGRAM = """
import logging, sys
if "listen" in sys.argv: logging.basicConfig(format="%(name)s")
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.errors import BrokerUnavailable
kafka = ConfluentKafka(client_config({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "1000"}))
producer, reader = kafka.producer(), kafka.reader("t")
producer.connect()
for _ in range(10): producer.poll(0.05)
try: kafka.cluster_id()
except BrokerUnavailable: pass
for one in (producer, reader, kafka): one.close()
"""


@pytest.mark.parametrize("listens", [False, True])
def test_nothing_is_printed_that_nobody_asked_for(listens: bool) -> None:
    """A program without a log handler has a clean standard error. With a handler, it finds the lines under one name."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(["listen"] if listens else [])], capture_output=True, text=True, check=True
    )
    assert set(done.stderr.splitlines()) == ({"statelog.kafka"} if listens else set())
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (admin.AdminClient, admin_properties),
        (confluent_kafka.Producer, producer_properties),
        (confluent_kafka.Consumer, consumer_properties),
    ],
)
def test_what_is_raised_while_a_line_is_logged_comes_out(
    kind: Any, properties: Callable[[ClientConfig], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception raised while a line is logged reaches the caller of the client, a Ctrl-C included."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    client = make_client(kind, "a client", properties(NOBODY), NOBODY, deque(maxlen=4))
    monkeypatch.setattr(logging.getLogger("statelog.kafka"), "log", interrupted)
    if kind is confluent_kafka.Consumer:
        client.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    until_s = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() < until_s:
            native(client.poll, 0.1)
    monkeypatch.undo()
    if kind is not admin.AdminClient:
        client.close()
