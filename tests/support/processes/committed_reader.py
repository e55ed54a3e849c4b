"""A reader with isolation.level=read_committed, beside processes that are killed: what came out, and in which order."""

import threading
from contextlib import closing
from typing import Self

import confluent_kafka

from statelog.schemas.outputs.output import Output

__all__ = ["CommittedReader"]

_POLL_S = 0.1


class CommittedReader:
    """Reads a whole topic on a thread of its own. Leaving the block ends it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        quiet = {"enable.auto.commit": "false", "log_level": "0"}
        self._client = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", **quiet}
        self._parts = [confluent_kafka.TopicPartition(topic, one, 0) for one in range(partitions)]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._read: list[list[Output]] = [[] for _ in self._parts]

    @property
    def records(self) -> list[Output]:
        """The messages so far, partition by partition."""
        return [one for partition in self._read for one in list(partition)]

    @property
    def count(self) -> int:
        """How many messages came out so far."""
        return sum(map(len, self._read))

    def of(self, partition: int) -> list[Output]:
        """Return the messages of a partition so far, in their order."""
        return list(self._read[partition])

    def _run(self) -> None:
        with closing(confluent_kafka.Consumer({**self._client, "isolation.level": "read_committed"})) as consumer:
            consumer.assign(self._parts)
            while not self._is_over.is_set():
                message = consumer.poll(_POLL_S)
                if message is not None and not message.error():
                    partition = message.partition() or 0
                    self._read[partition].append(_record(message, partition))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def _record(message: confluent_kafka.Message, partition: int) -> Output:
    headers = tuple((name, value) for name, value in message.headers() or [] if not isinstance(value, str))
    key = message.key()
    value = message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    return Output(message.topic() or "", value, key=key, headers=headers, partition=partition)
