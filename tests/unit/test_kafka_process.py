"""Kafka clients and forks: a child gets a typed error, and ends as a child should."""

import os
import sys
import traceback
from collections.abc import Callable

import pytest

from statelog.schemas.errors import ClosedError
from statelog.storage.kafka_client import ConfluentKafka
from statelog.storage.kafka_config import client_config
from statelog.storage.kafka_process import ProcessGuard

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def _in_fork(check: Callable[[], None]) -> int:
    """Run `check` in a forked child; returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:  # noqa: BLE001 - a child must not run on into pytest
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_clients_refuse_work_in_a_fork_and_may_be_dropped_there() -> None:
    """Clients made before the fork raise ClosedError in the child, and may be dropped there without a hang or crash."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"}))
    producer = kafka.producer()
    producer.send("t", 0, b"x", lambda _: None)
    clients = [kafka, producer]

    def check() -> None:
        with pytest.raises(ClosedError, match="another process"):
            producer.poll(0)
        with pytest.raises(ClosedError, match="another process"):
            producer.send("t", 0, b"x", lambda _: None)
        producer.close()
        clients.clear()

    del kafka
    assert _in_fork(check) == 0
    producer.close()


def test_a_client_that_was_never_used_may_be_used_in_a_fork() -> None:
    """Clients are made at first use, so configuring before the fork and working after it is fine."""
    producer = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"})).producer()

    def check() -> None:
        assert producer.send("t", 0, b"x", lambda _: None)
        producer.close()

    assert _in_fork(check) == 0


def test_a_guard_is_closed_for_good() -> None:
    """After close every check is refused, with or without a handle."""
    guard = ProcessGuard("thing")
    guard.check()
    guard.hold(object())
    guard.close()
    guard.close()
    with pytest.raises(ClosedError, match="thing"):
        guard.check()
