"""Kafka clients and forks: a child gets a typed error, and ends as a child should."""

import gc

import pytest

from statelog.schemas.errors import BrokerUnavailable, ClosedError
from statelog.storage.kafka_client import ConfluentKafka
from statelog.storage.kafka_config import client_config
from statelog.storage.kafka_process import ProcessGuard
from tests.support.forks import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_clients_refuse_work_in_a_fork_and_may_be_dropped_there() -> None:
    """Clients made before the fork raise ClosedError in the child, and may be dropped there without a hang or crash."""
    # Held by this list alone, so that clearing it in the child really drops them.
    clients = [ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"})).producer()]
    clients[0].send("t", 0, b"x", lambda _: None)

    def check() -> None:
        with pytest.raises(ClosedError, match="another process"):
            clients[0].poll(0)
        with pytest.raises(ClosedError, match="another process"):
            clients[0].send("t", 0, b"x", lambda _: None)
        clients.clear()
        gc.collect()

    assert in_fork(check) == 0
    clients[0].close()


def test_an_admin_client_refuses_work_in_a_fork() -> None:
    """The same for the client of topics and offsets, once it has asked a broker something."""
    config = client_config({"bootstrap.servers": "localhost:1"})
    clients = [ConfluentKafka(config, request_timeout_s=0.1)]
    with pytest.raises(BrokerUnavailable):
        clients[0].cluster_id()

    def check() -> None:
        with pytest.raises(ClosedError, match="another process"):
            clients[0].cluster_id()
        clients.clear()
        gc.collect()

    assert in_fork(check) == 0
    clients[0].close()


def test_a_client_that_was_never_used_may_be_used_in_a_fork() -> None:
    """Clients are made at first use, so configuring before the fork and working after it is fine."""
    producer = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"})).producer()

    def check() -> None:
        assert producer.send("t", 0, b"x", lambda _: None)
        producer.close()

    assert in_fork(check) == 0


def test_a_guard_is_closed_for_good() -> None:
    """After close every check is refused, with or without a handle."""
    guard = ProcessGuard("thing")
    guard.check()
    guard.hold(object())
    guard.close()
    guard.close()
    with pytest.raises(ClosedError, match="thing"):
        guard.check()
