"""The follower on confluent-kafka: a consumer that stays assigned to one partition; its fetch waits at the broker.

It is for partitions that a process follows for long: a record comes as soon as it is appended, and an idle partition
costs one request in 20 s. Assigning and seeking make reads expensive; here each happens once. A client with such a
fetch in flight does nothing else: a seek, another partition or a request for offsets would wait for it (9 to 18 s,
observed with librdkafka 2.16), so those go through other clients.

Invariants:
- Offsets strictly increase from its start. It never resets, and ends with an error if its offset is missing.
- After any exception out of the client it is discarded: the client may have skipped records that it did not return.
- One thread at a time polls it. One that a fork has copied refuses to work.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import closing

import confluent_kafka
from confluent_kafka import TopicPartition

from statelog.errors import BrokerUnavailable, Corrupt
from statelog.kafka.config import ClientConfig, following_properties
from statelog.kafka.errors import ABSENT, ENDING, REFUSED_OFFSET, UNPACKING, check_range, client_error
from statelog.kafka.native import ProcessGuard, close_consumer, make_client, native
from statelog.kafka.port import STALL_TIMEOUT_S, Kafka, OffsetRange, Record
from statelog.kafka.reader import OF_THE_GROUP, stamp_ms

_MOST = 512


class ConfluentFollower:
    """Follows partition 0 of one topic from an offset on; implements `kafka.PartitionFollower`."""

    def __init__(self, config: ClientConfig, topic: str, offset: int, kafka: Kafka) -> None:
        self._config = config
        self._topic = topic
        self.position = offset
        """All records below it were returned."""
        self._kafka = kafka
        self._guard = ProcessGuard("follower")
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        client = make_client(confluent_kafka.Consumer, "a consumer", following_properties(config), config, self._errors)
        self._native: confluent_kafka.Consumer | None = client
        self._refusal: confluent_kafka.KafkaError | None = None
        """An error that came behind records, for the next poll: the client reports some only once."""
        self._guard.hold(client)
        native(client.assign, [TopicPartition(topic, 0, offset)])

    @property
    def is_sound(self) -> bool:
        """Whether the client reported no error in the last poll."""
        return not self._errors

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """Return the records at hand, or wait for the next. Raises OffsetGone, BeyondEnd, NotFound, Unreadable."""
        self._guard.check()
        client = self._native
        assert client is not None, "the guard refuses a closed follower"
        self._errors.clear()
        try:
            if self._refusal is not None:
                self._raise(self._refusal)
            messages = native(client.consume, _MOST, 0.0)
            if not messages and timeout_s > 0:
                message = native(client.poll, timeout_s)
                messages = [] if message is None else [message, *native(client.consume, _MOST, 0.0)]
            return self._take(messages)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the client. Idempotent."""
        client, self._native = self._native, None
        if client is not None and not self._guard.is_foreign:
            self._guard.close()
            close_consumer(client)

    def _take(self, messages: Sequence[confluent_kafka.Message]) -> list[Record]:
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(self._advance(message))
            elif error.name() == "_PARTITION_EOF":
                self.position = max(self.position, message.offset() or 0)  # Above an offset that holds no record.
            else:
                self._refusal = error
                if not records:
                    self._raise(error)
                break
        return records

    def _advance(self, message: confluent_kafka.Message) -> Record:
        offset = message.offset()
        assert offset is not None, "records carry their offset"
        if offset < self.position:
            raise Corrupt(
                "offsets of a partition went backwards", topic=self._topic, partition=0, offset=offset,
                expected_offset=self.position, hint="Read again; if it happens again, the broker's log is damaged",
            )  # fmt: skip
        self.position = offset + 1
        return Record(0, offset, message.value() or b"", stamp_ms(message))

    def _raise(self, error: confluent_kafka.KafkaError) -> None:
        """Raise our error for the followed offset, unless the client's is transient."""
        self._refusal = None
        name, text = error.name(), self._config.redact(error.str())
        if name in UNPACKING:  # A reader finds the end of the batch.
            with closing(self._kafka.reader(self._topic)) as reader:
                here = {0: OffsetRange(self.position, self.position + 1)}
                next(reader.read(here, stall_timeout_s=STALL_TIMEOUT_S), None)
        if name in REFUSED_OFFSET | ABSENT:
            available = self._kafka.offsets(self._topic, [0], at_least={0: self.position})[0]
            check_range(self._topic, 0, OffsetRange(self.position, self.position), available)
        if name in ENDING - OF_THE_GROUP - UNPACKING:
            needs = f"READ on topic {self._topic}"
            raise client_error(name, text, "reading", self._config.bootstrap_servers, needs=needs, topic=self._topic)
        if name in REFUSED_OFFSET | UNPACKING or error.fatal():
            hint = "Read again: the offset is there now, a leader may have moved meanwhile"
            raise BrokerUnavailable(
                f"following was refused: {text}", hint=hint, topic=self._topic, offset=self.position
            )
