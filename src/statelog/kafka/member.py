"""The member of a consumer group on confluent-kafka.

librdkafka needs an answer to each decision of the group before it continues the protocol. The answers here are

    assigned   an assignment of no partition: nothing is fetched, and the group's offsets are not asked for
    revoked    the listener; then the partitions that are read are returned
    lost       the listener; then the partitions that are read are dropped

and `read_from` adds partitions later, with their offsets. So records only come from named offsets, and there is no
seek, which librdkafka refuses while it starts a partition.

Invariants:
- The client is closed once it has no more decisions to report. If it reports two inside its `close`, the first answer
  may end its membership, and the second waits forever, with the interpreter's lock: no thread runs, and no signal is
  handled (observed with librdkafka 2.16; its issue 4884).
- A static member gets back the share of its last process without a decision of the group. If that process died after
  it had released partitions, and before it reported that, no member has them (KIP-345 with KIP-429, as in KAFKA-9821).
  So a process checks the group with its first share, and makes it decide again.
- Records are taken from the client in batches, and returned one by one. Waiting ones are dropped if their partition is
  revoked, stopped, or fetched again: each record follows the one returned before, or the named offset.
- A record that cannot be unpacked ends the member. It is undefined where the client continues behind a wrong checksum
  (see `reader`), so it might skip records, or report the end.
- Callbacks of the group are Python, unlike all others: the group waits for the listener. An error in them, also a
  signal handler's, is noted, the client gets its answer, and the call raises it.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Never

import confluent_kafka
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient

from statelog.closing import undone_by_errors
from statelog.errors import BrokerUnavailable, Fact, Fenced, NotFound, StatelogError
from statelog.kafka.config import admin_properties
from statelog.kafka.errors import ABSENT, ENDING, REFUSED_OFFSET, UNPACKING, client_error, unreadable
from statelog.kafka.group import STRATEGY, GroupListener, GroupSettings, Taken
from statelog.kafka.native import ProcessGuard, kafka_error, make_client, native
from statelog.kafka.port import OffsetRange

_END = "_PARTITION_EOF"
_BATCH = 1000
"""The most records that are taken from the client at once."""
_FATAL, _INSTANCE = frozenset({"_FATAL", "FENCED_INSTANCE_ID"}), "group.instance.id"
"""Errors that end a client, though librdkafka does not call the first one fatal; and the setting in its text if another
member has the name."""
_GO_ON = (
    "Make another replica the leader, which may have them whole, or restore the broker's disk. To go on without them, "
    "delete the topic's records up to behind them, and accept that loss of the input"
)
_HEAR_S, _HEAR_POLL_S = 5.0, 0.02
"""How long a member that ends waits for decisions of the group, and how long for each."""
_Parts = list[TopicPartition]


class ConfluentMember:
    """One member, subscribed to one topic; implements `GroupMember`. Raises ConfigError, BrokerUnavailable."""

    def __init__(
        self, settings: GroupSettings, topic: str, listener: GroupListener, note: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._listener = listener
        self._note = note
        self._guard = ProcessGuard("member of a consumer group")
        self._batch: deque[Message] = deque()
        self._places: dict[int, int] = {}
        self._given: set[int] = set()
        self._heard = 0
        self._inherits = settings.is_static and "cooperative" in settings.properties.get(STRATEGY, "")
        self._raised: BaseException | None = None
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        properties, config = dict(settings.properties), settings.config
        self._native = make_client(confluent_kafka.Consumer, "a member of a group", properties, config, self._errors)
        self._guard.hold(self._native)
        with undone_by_errors(self.close):
            self._subscribe()

    def _subscribe(self) -> None:
        told = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        native(self._native.subscribe, [self._topic], **told)

    def poll(self, timeout_s: float) -> Taken | None:
        """Return the next record, or None. Raises the errors of `GroupMember.poll`."""
        if self._guard.is_closed:
            self._guard.check()
        room = max(_BATCH - len(self._batch), 1)
        found = native(self._native.consume, room, 0.0)
        if not found and not self._batch and timeout_s > 0:
            message = native(self._native.poll, timeout_s)
            found = [] if message is None else [message]
        self._batch.extend(found)
        if self._raised is not None:
            self._reraise()
        return self.at_hand()

    def at_hand(self) -> Taken | None:
        """Return the next record that was already taken, or None."""
        places = self._places
        while self._batch:
            message = self._batch.popleft()
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                self._hear(error, message)
            elif partition in places and offset is not None:  # Else it was revoked meanwhile.
                places[partition] = offset + 1
                return message, partition, offset
        return None

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, too."""
        self._guard.check()
        new = {partition: offset for partition, offset in offsets.items() if partition in self._given}
        self._places.update(new)
        try:
            self._fetch(self._native.incremental_assign, new)
        except confluent_kafka.KafkaException as refused:
            for partition in new:
                self._places.pop(partition, None)
            _, text = kafka_error(refused, self._settings.config)
            hint = "Try again: the group may be rebalancing"
            raise BrokerUnavailable(
                f"the client does not take partitions: {text}", hint=hint, topic=self._topic
            ) from None

    def stop(self, partitions: Sequence[int]) -> None:
        """Stop reading these partitions."""
        self._guard.check()
        gone = {one: offset for one in partitions if (offset := self._places.pop(one, None)) is not None}
        if gone:
            with suppress(confluent_kafka.KafkaException):  # The group is about to take them itself.
                self._fetch(self._native.incremental_unassign, gone)

    def is_current(self, partition: int, offset: int) -> bool:
        """Ask the group by a commit, which it only accepts from members of its present generation."""
        self._guard.check()
        asked = [TopicPartition(self._topic, partition, offset)]
        try:
            answers = native(self._native.commit, offsets=asked, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return not any(answer.error for answer in answers or ())

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets to the group, and ignore the outcome."""
        self._guard.check()
        parts = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        with suppress(confluent_kafka.KafkaException):
            native(self._native.commit, offsets=parts, asynchronous=True)

    def known_end(self, partition: int) -> int | None:
        """Return the end of a partition, as the client knows it."""
        self._guard.check()
        part = TopicPartition(self._topic, partition)
        _, end = native(self._native.get_watermark_offsets, part, cached=True) or (-1, -1)
        return end if end >= 0 else None

    def close(self) -> None:
        """Leave the group, and release the client. A static member only leaves when its session times out: until then
        it may come back, and find its partitions.
        """
        if self._guard.is_closed or self._guard.is_foreign:
            return
        with ExitStack() as ending:
            ending.callback(self._guard.close)
            ending.callback(self._quietly, lambda: native(self._native.close))
            self._quietly(self._answer_pending)
        self._reraise()

    @staticmethod
    def _quietly(work: Callable[[], None]) -> None:
        with suppress(confluent_kafka.KafkaException):
            work()

    def _answer_pending(self) -> None:
        """Answer the pending decisions of the group. Leave it, unless the member is static."""
        self.stop(list(self._places))
        if not self._settings.is_static:
            native(self._native.unsubscribe)
        heard, end_s = -1, time.monotonic() + _HEAR_S
        while (heard != self._heard or (self._given and not self._settings.is_static)) and time.monotonic() < end_s:
            heard = self._heard
            native(self._native.poll, _HEAR_POLL_S)

    # ---- callbacks of the client

    def _on_assign(self, consumer: confluent_kafka.Consumer, parts: _Parts) -> None:
        self._given.update(part.partition for part in parts)
        if self._inherits:
            self._inherits = False
            self._tell(self._complete, parts)
        if self._settings.is_cooperative:
            consumer.incremental_assign([])
        else:
            self._places.clear()
            consumer.assign([])
        self._tell(self._listener.assigned, parts)

    def _on_revoke(self, consumer: confluent_kafka.Consumer, parts: _Parts) -> None:
        self._tell(self._listener.revoked, parts)
        self._give_back(consumer, parts)

    def _on_lost(self, consumer: confluent_kafka.Consumer, parts: _Parts) -> None:
        self._tell(self._listener.lost, parts)
        self._give_back(consumer, parts)

    def _tell(self, listener: Callable[[Sequence[int]], None], parts: _Parts) -> None:
        self._heard += 1
        try:
            listener(sorted(part.partition for part in parts))
        except BaseException as error:  # noqa: BLE001 - the call raises it, and the group gets its answer
            self._raised = self._raised or error

    def _give_back(self, consumer: confluent_kafka.Consumer, parts: _Parts) -> None:
        gone = [part.partition for part in parts]
        self._given.difference_update(gone)
        read = [TopicPartition(self._topic, one) for one in gone if self._places.pop(one, None) is not None]
        if self._settings.is_cooperative:
            consumer.incremental_unassign(read)
        else:
            consumer.unassign()

    def _reraise(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    # ---- inside

    def _complete(self, partitions: Sequence[int]) -> None:
        """Make the group decide again if no member has some partition."""
        if not self._is_shared_out():
            self._note(f"no member has some partitions, besides {list(partitions)} of ours: the group decides again")
            self._subscribe()  # The client postpones it until it has its answer, and joins again.

    def _is_shared_out(self) -> bool:
        """Return whether every partition has a member; False without an answer."""
        config, group = self._settings.config, self._settings.group
        try:
            client = make_client(AdminClient, "a check of a group", admin_properties(config), config, self._errors)
            found = client.describe_consumer_groups([group], request_timeout=_HEAR_S)[group].result()
            there = client.list_topics(self._topic, timeout=_HEAR_S).topics[self._topic].partitions
        except (confluent_kafka.KafkaException, StatelogError):
            return False
        shares = (part for member in found.members for part in member.assignment.topic_partitions)
        return there.keys() <= {part.partition for part in shares if part.topic == self._topic}

    def _fetch(self, change: Callable[[_Parts], None], changed: Mapping[int, int]) -> None:
        """Change the fetched partitions by these, or, in a group that is not cooperative, to all that are read."""
        wanted = changed if self._settings.is_cooperative else self._places
        parts = [TopicPartition(self._topic, partition, offset) for partition, offset in wanted.items()]
        native(change if self._settings.is_cooperative else self._native.assign, parts)
        self._batch = deque(one for one in self._batch if one.partition() not in wanted)  # They come again.

    def _hear(self, error: confluent_kafka.KafkaError, message: Message) -> None:
        """Handle the client's error in place of a record: raise a permanent one, and note any other."""
        name, partition, offset = error.name(), message.partition(), message.offset()
        if name == _END:  # Common: it comes behind every few records of a partition.
            if partition in self._places and offset is not None:
                self._places[partition] = offset
                self._listener.ended(partition, offset)
            return
        text = self._settings.config.redact(error.str())
        if name in UNPACKING and offset is not None:
            if partition in self._places:
                first = max(offset, self._places[partition])
                lost = OffsetRange(first, first + 1)
                raise unreadable(self._topic, partition, lost, f"{name}: {text}").restated(hint=_GO_ON)
        elif name in REFUSED_OFFSET:
            self._listener.refused(partition, text)
        elif name in ABSENT or name in ENDING or name in _FATAL or error.fatal():
            self._end(name, text)
        else:
            self._note(text)

    def _end(self, name: str, text: str) -> Never:
        servers = self._settings.config.bootstrap_servers
        facts: dict[str, Fact] = {"topic": self._topic, "group": self._settings.group}
        if name in _FATAL and _INSTANCE in text:
            raise Fenced(
                "another member of the group took this one's group.instance.id", hint="Give each its own", **facts
            )
        if name in ENDING:
            needs = f"READ on topic {self._topic}, and on group {self._settings.group}"
            raise client_error(name, text, "reading the input", servers, needs=needs, **facts)
        if name in ABSENT:
            raise NotFound(f"the input topic is missing: {text}", hint="Check whether it was deleted", **facts)
        raise BrokerUnavailable(f"the client cannot go on: {text}", hint="Start the process again", **facts)
