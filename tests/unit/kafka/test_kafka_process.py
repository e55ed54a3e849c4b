"""In a forked child, Kafka clients raise a typed error, and the child ends normally."""

import gc
import signal
import tracemalloc
import warnings
import weakref
from typing import cast

import confluent_kafka
import pytest

from statelog.errors import BrokerUnavailable, ClosedError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.group import GroupListener, group_settings
from statelog.kafka.member import ConfluentMember
from statelog.kafka.native import ProcessGuard
from tests.support.processes.starts import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_clients_refuse_work_in_a_fork_and_may_be_dropped_there() -> None:
    """Clients that were made before the fork raise ClosedError in the child.

    Dropping them there neither hangs nor crashes.
    """
    # Only this list refers to them, so clearing it in the child really drops them.
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
    """An admin client that has asked a broker raises ClosedError in the child."""
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
    """An unused client may be used in a child, since the native client is made at first use."""
    producer = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"})).producer()

    def check() -> None:
        assert producer.send("t", 0, b"x", lambda _: None)
        producer.close()

    assert in_fork(check) == 0


def test_a_thread_that_a_fork_left_behind_holds_nothing_up() -> None:
    """A fork while another thread records an acknowledgement leaves the child the earlier ends, and no locked lock."""
    config = client_config({"bootstrap.servers": "localhost:2"})
    seen = vars(ConfluentKafka(config))["_seen"]
    seen.reached("t", 0, 5)

    def check() -> None:
        signal.alarm(10)
        assert vars(ConfluentKafka(config))["_seen"].end("t", 0) == 5

    with vars(seen)["_lock"]:
        assert in_fork(check) == 0


def test_a_client_that_a_fork_left_half_made_is_made_anew() -> None:
    """A child makes its own client, and waits for no lock, if another thread was making the parent's."""
    port = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"}), request_timeout_s=0.1)

    def check() -> None:
        signal.alarm(10)
        with pytest.raises(BrokerUnavailable):
            port.cluster_id()
        port.close()

    with vars(vars(port)["_admin"])["_making"]:
        assert in_fork(check) == 0


def test_a_guard_is_closed_for_good() -> None:
    """After close, every check is refused, with or without a handle."""
    guard = ProcessGuard("thing")
    guard.check()
    guard.hold(object())
    guard.close()
    guard.close()
    with pytest.raises(ClosedError, match="thing"):
        guard.check()


def test_a_guard_that_was_closed_holds_nothing() -> None:
    """A client that is completed after another thread closed the guard is released, and its maker gets an error."""
    guard, handle = ProcessGuard("thing"), Handle()
    guard.close()
    left = weakref.ref(handle)
    with pytest.raises(ClosedError, match="thing"):
        guard.hold(handle)
    del handle
    assert left() is None


class Handle:
    """A stand-in for a native client."""


def test_a_guard_that_is_forgotten_warns_and_frees_its_handle() -> None:
    """A forgotten guard warns like an unclosed file and frees its handle. The warning says where it was made."""
    gc.collect()  # earlier tests' leftovers would be reported here
    guard, handle = ProcessGuard("thing"), Handle()
    tracemalloc.start(5)
    try:
        guard.hold(handle)
        left = weakref.ref(handle)
        del handle
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            del guard
            gc.collect()
        (warning,) = told
        made = tracemalloc.get_object_traceback(warning.source)
    finally:
        tracemalloc.stop()
    assert left() is None
    assert warning.category is ResourceWarning
    assert "unclosed thing of statelog" in str(warning.message)
    assert made is not None
    assert any(frame.filename == __file__ for frame in made)


def test_a_guard_that_was_closed_or_gave_its_handle_up_is_silent() -> None:
    """A guard that was closed, released its handle, never had one, or is a fork's copy is silent."""
    gc.collect()  # earlier tests' leftovers would be reported here
    forked = [ProcessGuard("thing")]
    forked[0].hold(Handle())

    def drop_all() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            forked.clear()
            gc.collect()

    assert in_fork(drop_all) == 0
    forked[0].close()
    closed, dropped = ProcessGuard("thing"), ProcessGuard("thing")
    closed.hold(Handle())
    closed.close()
    dropped.hold(Handle())
    dropped.drop()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del closed, dropped
        ProcessGuard("thing")
        gc.collect()
    assert told == []


class _Interrupted(confluent_kafka.Consumer):
    """A consumer that Ctrl-C interrupts as it subscribes."""

    def subscribe(self, *_: object, **__: object) -> None:
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt


def test_a_member_that_does_not_come_about_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted construction of a member raises the interrupt, and its client is closed by then."""
    monkeypatch.setattr(confluent_kafka, "Consumer", _Interrupted)
    settings = group_settings({}, {"bootstrap.servers": "localhost:1"}, default_group="group")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            ConfluentMember(settings, "topic", cast("GroupListener", None), lambda _: None)
        gc.collect()
    assert told == []
