"""The output producer over a client that does not return from a call."""

import threading
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from statelog.errors import BrokerUnavailable, Fenced, OutcomeUnknown
from statelog.kafka import outputs
from statelog.kafka.config import client_config
from statelog.kafka.outputs import ConfluentOutputProducer
from statelog.kafka.port import GroupOffset
from statelog.schemas.outputs.output import Output


class _Client:
    """A client with one call that returns when it is released."""

    def __init__(self, stuck: str) -> None:
        self._stuck = stuck
        self.released = threading.Event()
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: object, **__: object) -> int:
            self.called.append(name)
            if name == self._stuck:
                self.released.wait()
            return 0

        return call


class _Groups:
    """The group, which has stored nothing."""

    def stored(self, group: str, topic: str, partition: int) -> tuple[GroupOffset, object]:
        assert (group, topic, partition) == ("name", "ledger", 0)
        return GroupOffset(), object()

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        raise AssertionError((group, topic, partition, offset, metadata))


@pytest.mark.parametrize(
    ("stuck", "error"),
    [
        ("init_transactions", BrokerUnavailable),
        ("send_offsets_to_transaction", BrokerUnavailable),
        ("commit_transaction", OutcomeUnknown),
    ],
)
def test_a_call_that_does_not_return_is_left(
    stuck: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into the client that outlasts its time-out is an error, and the close behind it returns."""
    client = _Client(stuck)
    monkeypatch.setattr(outputs, "make_client", Mock(return_value=client))
    monkeypatch.setattr(outputs, "GRACE_S", 0.1)
    config = client_config({"bootstrap.servers": "127.0.0.1:9"})
    producer = ConfluentOutputProducer(config, "name", "ledger", _Groups(), is_transactional=True, timeout_s=0.1)
    began_s = time.monotonic()
    try:
        with pytest.raises(error) as met:
            producer.start()
            producer.begin()
            producer.send(Output("out", b"x"))
            producer.commit(1)
        assert not isinstance(met.value, Fenced)
        producer.close()
        assert time.monotonic() - began_s < 10.0
        assert "close" in client.called
    finally:
        client.released.set()
