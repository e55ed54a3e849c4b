"""The reader on confluent-kafka.

Owns one librdkafka consumer, which only ever assigns explicit offsets: no group, no commit, no reset. It never skips
and never ends early: a partition is finished at a record at or past the end of its range, or at the end of the log.

Invariants:
- Offsets of a partition strictly increase.
- After any exception out of the client, also an interrupt, the consumer is discarded: the client may have moved its
  position past records that it then dropped.
- A consumer belongs to one reader while it reads, or waits for the next one in `IdleConsumers`. A consumer that a fork
  has copied is never handed out.

The client fetches ahead, and unpacks all that it fetched: an error behind a range does not concern it. After a batch
with a wrong checksum the client fetches at an arbitrary offset (librdkafka 2.16), and is refused, also in a later read.
Such a client is astray, and discarded. An offset that is refused although it is there is read
once more, by another client.

It fetches ahead up to 2 MB of a partition. So single records of several partitions with known records behind them, such
as old anchors of a snapshot, are read by a sparing consumer, unless another one waits.

The offsets of a range are checked first only if this process has not observed its end. Else the broker refuses a
truncated start, and offsets are checked at an early end of the log, or after a silence.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import TopicPartition

from statelog.environment import start_thread
from statelog.errors import BrokerUnavailable, ClosedError, Corrupt, Fact, Unreadable
from statelog.kafka.config import ClientConfig, consumer_properties
from statelog.kafka.errors import (
    ABSENT,
    ENDING,
    REFUSED_OFFSET,
    UNPACKING,
    check_range,
    client_error,
    unreadable,
)
from statelog.kafka.native import ProcessGuard, close_consumer, last_error, make_client, native
from statelog.kafka.port import Kafka, OffsetRange, Record
from statelog.kafka.positions import HighWater

_BATCH, _MOST = 16, 512
"""How many records are taken at once, at first and, of small ones, at most: with busy threads each call waits for the
interpreter. A batch is only taken from records at hand, because the client would wait for all of it."""
_SMALL_BYTES = 1 << 16
_POLL_S = 0.1
_SILENCE_S = 1.0
"""After so long without a record, offsets that were not checked at the beginning are checked."""
_MOST_IDLE = 32
_FRESH_S = 60.0
"""How long an idle connection is trusted: less than any load balancer's limit."""
_BY_BROKER = confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
OF_THE_GROUP = frozenset({"GROUP_AUTHORIZATION_FAILED"})
"""An error that readers ignore: the client asks for the coordinator of a group, which a reader never joins."""
_PERHAPS_GONE = REFUSED_OFFSET | ABSENT


class IdleConsumer(NamedTuple):
    """A consumer that fetches nothing, its errors, and whether it is only for single records."""

    client: confluent_kafka.Consumer
    errors: deque[confluent_kafka.KafkaError]
    is_sparing: bool = False


class _Waiting(NamedTuple):
    topic: str
    idle: IdleConsumer
    guard: ProcessGuard
    since_s: float

    def close(self) -> None:
        if not self.guard.is_foreign:
            self.guard.close()
            close_consumer(self.idle.client)


class IdleConsumers:
    """Consumers between two reads, for many readers that seldom read. Thread-safe.

    It retains as many for a topic as were reading at the same time. A reader of another topic does not get one, because
    librdkafka would search that topic's leaders a second later (observed with 2.16). Of all consumers the last ones
    used are retained: each has connections and threads of its own. A consumer that has waited for a minute is closed:
    its connections may have been dropped silently.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._given = count()
        self._clock = clock
        self._is_closed = False

    def take(self, topic: str, *, is_single: bool = False) -> IdleConsumer | None:
        """Return the last consumer that has read this topic, for the caller to give back or close; None if there is
        none. A sparing one is only returned for single records.
        """
        for number, waiting in reversed(list(self._waiting.items())):
            if waiting.topic != topic or (waiting.idle.is_sparing and not is_single):
                continue
            if self._waiting.pop(number, None) is None or waiting.guard.is_foreign:
                continue
            if self._clock() - waiting.since_s < _FRESH_S:
                waiting.guard.close()
                return waiting.idle
            waiting.close()
        return None

    def give(self, topic: str, idle: IdleConsumer) -> None:
        """Retain it for the next reader, or close it."""
        waiting = _Waiting(topic, idle, ProcessGuard("reader"), self._clock())
        waiting.guard.hold(idle.client)
        self._waiting[next(self._given)] = waiting
        for number in list(self._waiting)[:-_MOST_IDLE]:
            self._end(number)
        if self._is_closed:  # By another thread, perhaps before this one was added.
            self.close()
        _WATCH.add(self)

    def rest(self) -> bool:
        """Close the consumers that have waited for long. Return whether others wait."""
        for number, waiting in list(self._waiting.items()):
            if self._clock() - waiting.since_s >= _FRESH_S:
                self._end(number)
        return bool(self._waiting)

    def close(self) -> None:
        """Close all consumers, also those given back later. Idempotent."""
        self._is_closed = True
        for number in list(self._waiting):
            self._end(number)

    def _end(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.close()


class _Watch:
    """The thread that closes consumers that have waited for long in this process. It ends when none waits."""

    def __init__(self) -> None:
        self._watched: dict[int, weakref.ref[IdleConsumers]] = {}
        self._is_on = False

    def add(self, idle: IdleConsumers) -> None:
        self._watched[id(idle)] = weakref.ref(idle)
        if not self._is_on:
            self._is_on = True
            start_thread(self._run)

    def _run(self) -> None:
        while self._watched:
            time.sleep(_FRESH_S / 4)
            for key, there in list(self._watched.items()):
                idle = there()
                if idle is None or not idle.rest():
                    self._watched.pop(key, None)
                del idle
        self._is_on = False
        for one in [there() for there in list(self._watched.values())]:  # Added meanwhile.
            if one is not None:
                self.add(one)

    def forget(self) -> None:
        """Reset it in a forked child, which has no such thread."""
        self._watched, self._is_on = {}, False


_WATCH = _Watch()
os.register_at_fork(after_in_child=_WATCH.forget)


class ConfluentReader:
    """Reads ranges of one topic; implements `kafka.Reader`."""

    def __init__(
        self,
        config: ClientConfig,
        topic: str,
        kafka: Kafka,
        clock: Callable[[], float],
        seen: HighWater,
        idle: IdleConsumers | None = None,
    ) -> None:
        self._config = config
        self._idle = idle
        self._topic = topic
        self._kafka = kafka
        self._clock = clock
        self._seen = seen
        self._guard = ProcessGuard("reader")
        self._native: confluent_kafka.Consumer | None = None
        self._turn = 0
        self._batch = _BATCH
        self._last_error = ""
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        self._stuck: tuple[int, int, str] | None = None
        self._is_astray = self._was_refused = self._is_sparing = False

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`. Raises OffsetGone, BeyondEnd, NotFound, Unreadable, BrokerUnavailable."""
        self._guard.check()
        self._turn += 1
        left = {partition: wanted for partition, wanted in ranges.items() if wanted.start < wanted.end}
        return self._read(self._turn, left, stall_timeout_s)

    def close(self) -> None:
        """Release the client. Idempotent."""
        self._turn += 1
        self._discard()
        self._guard.close()

    def _read(self, turn: int, left: dict[int, OffsetRange], stall_timeout_s: float) -> Iterator[Record]:
        """Yield the records of `left`, which shrinks as they arrive: its starts are the next expected offsets."""
        if not left:
            return
        try:
            self._check_turn(turn)
            self._was_refused = False
            is_asked = any(self._seen.end(self._topic, partition) < wanted.end for partition, wanted in left.items())
            if is_asked:
                self._check_available(left)
            if self._native is None:
                self._is_sparing = self._idle is not None and self._is_amid(left)
            self._assign(left)
            waited_s = 0.0
            while left:
                asked_at = self._clock()
                messages = self._fetch()
                records, moved = self._take(messages, left)
                waited_s = 0.0 if moved else waited_s + self._clock() - asked_at
                if waited_s >= _SILENCE_S and not is_asked:
                    is_asked = True
                    self._check_available(left)
                self._check_stall(waited_s, stall_timeout_s, left)
                for record in records:
                    yield record
                    if turn != self._turn:  # The next fetch detects a fork.
                        self._check_turn(turn)
                self._raise_unreadable(left, stall_timeout_s)
                if self._is_astray and left:
                    self._assign(left)
        except (GeneratorExit, Unreadable):
            self._release(turn)
            raise
        except BaseException:
            if turn == self._turn:
                self._discard()
            raise
        self._release(turn)

    def _check_turn(self, turn: int) -> None:
        self._guard.check()
        if turn != self._turn:
            raise ClosedError("this read was ended by a later one", hint="Run one read of a reader at a time")

    def _check_available(self, left: Mapping[int, OffsetRange]) -> None:
        ends = {partition: wanted.end for partition, wanted in left.items()}
        available = self._kafka.offsets(self._topic, sorted(left), at_least=ends)
        for partition, wanted in left.items():
            check_range(self._topic, partition, wanted, available[partition])

    def _is_amid(self, left: Mapping[int, OffsetRange]) -> bool:
        """Return whether only single records of several partitions are wanted, with known records behind some. For one
        partition, another consumer would cost as much as the records that are fetched in vain.
        """
        is_single = len(left) > 1 and all(wanted.end - wanted.start == 1 for wanted in left.values())
        return is_single and any(wanted.end < self._seen.end(self._topic, p) for p, wanted in left.items())

    def _assign(self, left: Mapping[int, OffsetRange]) -> None:
        if self._is_astray:
            self._discard()
        client, self._last_error, self._stuck = self._client(), "", None
        self._errors.clear()
        native(client.assign, [TopicPartition(self._topic, p, wanted.start) for p, wanted in left.items()])

    def _fetch(self) -> list[confluent_kafka.Message]:
        """Return the messages at hand, up to a batch; else wait for the next one."""
        client = self._client()
        messages = native(client.consume, self._batch, 0.0)
        if messages:
            is_small = sum(len(one.value() or b"") for one in messages) <= _SMALL_BYTES
            self._batch = min(2 * self._batch, _MOST) if is_small else _BATCH
            return messages
        message = native(client.poll, _POLL_S)
        return [] if message is None else [message]

    def _take(
        self, messages: Sequence[confluent_kafka.Message], left: dict[int, OffsetRange]
    ) -> tuple[list[Record], bool]:
        """Return the wanted records of some messages, and whether a partition moved. Finished ones leave `left`."""
        records: list[Record] = []
        open_before, moved = set(left), False
        for message in messages:
            wanted = left.get(message.partition())
            error = message.error()
            if error is not None and error.name() in UNPACKING and (base := message.offset()) is not None:
                self._is_astray = True
                if wanted is not None and base < wanted.end:
                    self._stuck = (message.partition(), base, f"{error.name()}: {self._config.redact(error.str())}")
                    break  # The other messages are read again, behind the batch.
                left.pop(message.partition(), None)
            elif error is not None and error.name() != "_PARTITION_EOF":
                self._note(error, message, left)
                if self._is_astray:
                    break
            elif wanted is not None:
                moved |= self._advance(message, wanted, left, records)
        for partition, end in {record.partition: record.offset + 1 for record in records}.items():
            self._seen.reached(self._topic, partition, end)
        self._unassign(open_before - set(left), others=bool(left))
        self._was_refused &= not moved
        return records, moved

    def _advance(
        self, message: confluent_kafka.Message, wanted: OffsetRange, left: dict[int, OffsetRange], records: list[Record]
    ) -> bool:
        """Move one partition behind a record, or to the log's end. Return False if it was there already."""
        partition, offset = message.partition(), message.offset()
        assert offset is not None, "records and end-of-partition events carry their offset"
        is_end = message.error() is not None
        if offset < wanted.start and not is_end:
            raise Corrupt(
                "offsets of a partition went backwards", topic=self._topic, partition=partition, offset=offset,
                expected_offset=wanted.start, hint="Read again; if it happens again, the broker's log is damaged",
            )  # fmt: skip
        if not is_end and offset < wanted.end:
            records.append(Record(partition, offset, message.value() or b"", stamp_ms(message)))
        next_offset = offset if is_end else offset + 1
        if next_offset >= wanted.end:
            del left[partition]
            return True
        # Made unchecked, for every record: neither offset is below the start, which was checked.
        left[partition] = OffsetRange._make((max(next_offset, wanted.start), wanted.end))
        if is_end:
            self._check_available({partition: left[partition]})
        return not is_end

    def _raise_unreadable(self, left: Mapping[int, OffsetRange], stall_timeout_s: float) -> None:
        """Raise Unreadable after a batch that cannot be unpacked. The client does not report its end: search it."""
        if self._stuck is None:
            return
        partition, base, reason = self._stuck
        start, end = left[partition]
        inside, behind, step = max(base, start), end, 1
        while behind - inside > 1:
            middle = inside + min(step, (behind - inside) // 2)
            if self._is_behind(partition, middle, base, stall_timeout_s):
                behind = middle
            else:
                inside, step = middle, 2 * step
        raise unreadable(self._topic, partition, OffsetRange(max(base, start), behind), reason)

    def _is_behind(self, partition: int, offset: int, base: int, stall_timeout_s: float) -> bool:
        """Return whether this offset lies behind the batch that begins at `base`."""
        here = {partition: OffsetRange(offset, offset + 1)}
        self._was_refused = False
        self._assign(here)
        asked_at = self._clock()
        while True:
            for message in self._fetch():
                error = message.error()
                if error is None or error.name() == "_PARTITION_EOF":
                    return True
                if error.name() in UNPACKING:
                    self._is_astray = True
                    return message.offset() != base
                self._note(error, message, here)
            if self._is_astray:
                self._assign(here)
            self._check_stall(self._clock() - asked_at, stall_timeout_s, here)

    def _note(
        self, error: confluent_kafka.KafkaError, message: confluent_kafka.Message, left: Mapping[int, OffsetRange]
    ) -> None:
        """Raise for an error that ends the read. Note a transient one, for the message of a stall."""
        name, text = error.name(), self._config.redact(error.str())
        if name in REFUSED_OFFSET and message.partition() not in left:
            return
        self._last_error = f"{name}: {text}"
        where: dict[str, Fact] = {"topic": self._topic, "partition": message.partition()}
        if name in _PERHAPS_GONE:
            self._check_available(left)
        if name in ENDING - OF_THE_GROUP:
            needs = f"READ on topic {self._topic}"
            raise client_error(name, text, "reading", self._config.bootstrap_servers, needs=needs, **where)
        if name in REFUSED_OFFSET and not self._was_refused:
            self._is_astray = self._was_refused = True
        elif name in REFUSED_OFFSET or error.fatal():
            hint = "Read again: the offset is there now, a leader may have moved meanwhile"
            raise BrokerUnavailable(f"the read was refused: {text}", hint=hint, **where)

    def _check_stall(self, waited_s: float, stall_timeout_s: float, left: Mapping[int, OffsetRange]) -> None:
        """Raise after too long without a record: the loss if the log shrank meanwhile, else BrokerUnavailable."""
        if not left or waited_s < stall_timeout_s:
            return
        self._check_available(left)
        partition, wanted = next(iter(left.items()))
        reason = last_error(self._errors, self._config) or self._last_error
        raise BrokerUnavailable(
            "; ".join(filter(None, (f"no record came within {stall_timeout_s:g} s", reason))),
            bootstrap_servers=self._config.bootstrap_servers, topic=self._topic, partition=partition,
            next_offset=wanted.start, end_offset=wanted.end,
        )  # fmt: skip

    def _unassign(self, done: set[int], *, others: bool) -> None:
        """Stop fetching finished partitions. Not by a pause, which would outlive this assignment."""
        if done and others:
            native(self._client().incremental_unassign, [TopicPartition(self._topic, p) for p in done])

    def _client(self) -> confluent_kafka.Consumer:
        self._guard.check()
        if self._native is None:
            idle = None if self._idle is None else self._idle.take(self._topic, is_single=self._is_sparing)
            if idle is None:
                properties = consumer_properties(self._config, is_sparing=self._is_sparing)
                errors = deque[confluent_kafka.KafkaError](maxlen=4)
                client = make_client(confluent_kafka.Consumer, "a consumer", properties, self._config, errors)
                idle = IdleConsumer(client, errors, self._is_sparing)
            self._native, self._errors, self._is_sparing = idle
            self._guard.hold(self._native)
        return self._native

    def _release(self, turn: int) -> None:
        """End a read that succeeded or was abandoned: retain the connection, drop the records fetched ahead."""
        if self._is_astray and turn == self._turn:
            self._discard()
        if turn == self._turn and self._native is not None and not self._guard.is_foreign:
            native(self._native.unassign)
            if self._idle is not None:
                client, self._native = self._native, None
                self._guard.drop()
                self._idle.give(self._topic, IdleConsumer(client, self._errors, self._is_sparing))

    def _discard(self) -> None:
        client, self._native, was_astray, self._is_astray = self._native, None, self._is_astray, False
        if client is not None and not self._guard.is_foreign:
            self._guard.drop()
            close_consumer(client, was_astray=was_astray)


def stamp_ms(message: confluent_kafka.Message) -> int:
    """Return the broker's time; -1 if the topic has the senders' times, which may come from any clock."""
    kind, stamp_ms = message.timestamp()
    return stamp_ms if kind == _BY_BROKER else -1
