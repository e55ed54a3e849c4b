"""The output producer beside a client that raises where librdkafka rarely does: its errors are ours, in every call."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest

from statelog.errors import BrokerUnavailable, Fenced
from statelog.kafka import outputs
from statelog.kafka.config import client_config
from statelog.kafka.outputs import ConfluentOutputProducer
from statelog.kafka.port import GroupOffset
from statelog.schemas.outputs.output import Output

_FENCED, _TIMED_OUT = -144, -185
"""The numbers of librdkafka's errors."""


def _raising(code: int) -> Mock:
    return Mock(side_effect=confluent_kafka.KafkaException(confluent_kafka.KafkaError(code)))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return the client that the next output producer gets."""
    made = Mock(flush=Mock(return_value=0))
    monkeypatch.setattr(outputs, "make_client", Mock(return_value=made))
    return made


def _begun() -> ConfluentOutputProducer:
    groups: Any = Mock(stored=Mock(return_value=(GroupOffset(), None)))
    config = client_config({"bootstrap.servers": "localhost:9092"})
    producer = ConfluentOutputProducer(config, "name", "ledger", groups, is_transactional=True, timeout_s=0.1)
    producer.start()
    producer.begin()
    return producer


@pytest.mark.parametrize(
    ("code", "error"),
    [(_FENCED, Fenced), (_TIMED_OUT, BrokerUnavailable)],
)
@pytest.mark.parametrize("call", ["flush", "poll"])
def test_an_error_while_it_waits_for_records(client: Mock, code: int, error: type[Exception], call: str) -> None:
    """A client that fails while it waits for records, as one that is fenced then, raises the port's error."""
    producer = _begun()
    setattr(client, call, _raising(code))
    client.produce = Mock(side_effect=BufferError)
    steps: dict[str, Callable[[], object]] = {
        "flush": lambda: producer.commit(1),
        "poll": lambda: producer.send(Output("topic", b"x")),
    }
    with pytest.raises(error):
        steps[call]()
    producer.close()
