"""After a batch that it cannot unpack, a client may continue anywhere. Later reads use another client."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from typing import Any, cast

import confluent_kafka
import pytest

from statelog.errors import BrokerUnavailable, Unreadable
from statelog.kafka import native, reader
from statelog.kafka.config import client_config
from statelog.kafka.port import Kafka, OffsetRange
from statelog.kafka.positions import HighWater

_END = 6
_BAD_CHECKSUM, _REFUSED = -199, -140
"""librdkafka's `_BAD_MSG` and `_AUTO_OFFSET_RESET`."""


class _Message:
    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset = offset
        self._error = None if error is None else confluent_kafka.KafkaError(error)

    def error(self) -> confluent_kafka.KafkaError | None:
        return self._error

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, 0


class _Client:
    """A client of a partition whose offsets 2 and 3 are one batch with a wrong checksum.

    After it, the client continues anywhere.
    """

    is_refused = False

    def __init__(self) -> None:
        self._messages: Iterator[_Message] = iter(())
        self.is_astray = self.is_closed = False

    def assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        start = partitions[0].offset
        self._messages = self._from(start, is_refused=self.is_astray or self.is_refused)
        self.is_astray |= start < 4  # It fetches ahead.

    def _from(self, start: int, *, is_refused: bool) -> Iterator[_Message]:
        if is_refused:
            yield _Message(start, _REFUSED)
        for offset in range(start, 2):
            yield _Message(offset)
        if start < 4:
            yield _Message(2, _BAD_CHECKSUM)
        for offset in range(max(start, 4), _END):
            yield _Message(offset)

    def consume(self, *_: object) -> list[_Message]:
        return []

    def poll(self, *_: object) -> _Message | None:
        return next(self._messages, None)

    def incremental_unassign(self, _: object) -> None:
        pass

    def unassign(self) -> None:
        self._messages = iter(())

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[_Client]:
    """Return the clients that the reader makes."""
    made: list[_Client] = []

    def make(*_: object) -> Any:
        made.append(_Client())
        return made[-1]

    monkeypatch.setattr(reader, "make_client", make)
    return made


class _Kafka:
    def offsets(self, _: str, partitions: Iterable[int], **__: object) -> dict[int, OffsetRange]:
        return dict.fromkeys(partitions, OffsetRange(0, _END))


@pytest.fixture
def mine(clients: list[_Client]) -> Iterator[reader.ConfluentReader]:
    """Return a reader of the partition whose end this process has observed."""
    seen, idle, kafka = HighWater(), reader.IdleConsumers(lambda: 0.0), cast("Kafka", _Kafka())
    seen.reached("t", 0, _END)
    config = client_config({"bootstrap.servers": "nowhere:1"})
    with closing(reader.ConfluentReader(config, "t", kafka, lambda: 0.0, seen, idle)) as made:
        yield made
    idle.close()
    assert clients
    assert all(one.is_closed for one in clients)


@pytest.mark.parametrize("end", [2, 3, _END], ids=["behind", "half", "inside"])
def test_it_is_thrown_away(mine: reader.ConfluentReader, end: int) -> None:
    """A client that met the batch is closed, also if the batch lies behind the range that is read."""
    for _ in range(2):
        found: list[int] = []
        with nullcontext() if end == 2 else pytest.raises(Unreadable) as told:
            found += (one.offset for one in mine.read({0: OffsetRange(0, end)}, stall_timeout_s=1.0))
        assert found == [0, 1]
        if told is not None:
            assert (told.value.facts["start_offset"], told.value.facts["end_offset"]) == (2, min(end, 4))
    assert [one.offset for one in mine.read({0: OffsetRange(4, _END)}, stall_timeout_s=1.0)] == [4, 5]


def test_an_offset_is_asked_for_twice(
    mine: reader.ConfluentReader, clients: list[_Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A present offset that a second client refuses as well is the broker's error."""
    monkeypatch.setattr(_Client, "is_refused", True)
    with pytest.raises(BrokerUnavailable, match="the read was refused"):
        list(mine.read({0: OffsetRange(4, _END)}, stall_timeout_s=1.0))
    assert len(clients) == 2


def test_one_that_never_ends_is_left_alone(
    mine: reader.ConfluentReader,
    clients: list[_Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client whose close never returns does not hold up the reader."""
    may_end, ended = threading.Event(), threading.Event()

    def close(client: _Client) -> None:
        may_end.wait(10.0)
        client.is_closed = True
        ended.set()

    monkeypatch.setattr(_Client, "close", close)
    monkeypatch.setattr(native, "GRACE_S", 0.05)
    with pytest.raises(Unreadable):
        list(mine.read({0: OffsetRange(2, 3)}, stall_timeout_s=1.0))
    assert clients
    assert not any(one.is_closed for one in clients)
    assert "a consumer did not end" in caplog.text
    may_end.set()
    assert ended.wait(10.0)
