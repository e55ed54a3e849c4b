"""Output records of a state, exactly once: an outbox in the state, published in Kafka transactions.

    statelog dev start                          # a Kafka on 127.0.0.1:9092
    python -m examples.outbox input             # puts words into a topic of three partitions; again for more
    python -m examples.outbox                   # a worker: in as many terminals as you like, while words come in
    python -m examples.outbox check             # compares what came out with what a plain loop over the topic says
    python -m examples.outbox clean             # deletes topics and log
    python -m examples.outbox table --name one  # the same with one table, for an input of its own (`input --name one`)

Words are counted, and every fifth occurrence of a word makes an output record. A commit covers the state and the place
in the input, and no record of another topic. So output records are first stored in the state, as keys of the same
commit. After the commit they are published, in a Kafka transaction that also stores the progress, and deleted by a
later commit. Kill any process with SIGKILL, at any moment: readers with isolation.level=read_committed see each record
once.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from threading import Event

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import statelog
from examples import word_counts
from examples.topic import Place, main, on_signal
from statelog.tables import InputTopic, Table, WorkerHooks

__all__ = ["Outbox", "check", "clean", "fill", "one_table", "work"]

PARTITIONS = 3
EVERY = 5
_WAIT_S = 60

State = Table[bytes, bytes]


class Outbox:
    """The output of one partition of the input. The order of the three steps makes it exact."""

    def __init__(self, place: Place, table: State, partition: int) -> None:
        name = f"{place.name}-output-{partition}"
        self._table = table  # 1. It is open: the former owner can no longer commit.
        self._producer = Producer({**place.kafka, "transactional.id": name})
        self._producer.init_transactions(_WAIT_S)  # 2. The former owner can no longer publish.
        self._part = TopicPartition(place.topic, partition)
        self._topic = f"{place.name}-output"
        with closing(Consumer({**place.kafka, "group.id": name, "enable.auto.commit": False})) as reader:
            self._group = reader.consumer_group_metadata()
            (published,) = reader.committed([self._part], _WAIT_S)  # 3. So this place is final.
        self._published = max(published.offset, 0)
        self._prefix = b"out/%d/" % partition
        self._keys = deque(key for key, _ in table.prefix(self._prefix))

    def put(self, offset: int, value: bytes) -> None:
        """Add the output record of the message at this offset of the input: at most one here."""
        key = self._prefix + b"%016d" % offset
        self._table[key] = value
        self._keys.append(key)

    def publish(self, committed: int) -> None:
        """Publish the committed output: the state is committed up to this offset of the input."""
        due: list[bytes] = []
        while self._keys and self._offset(self._keys[0]) < committed:
            due.append(self._keys.popleft())
        if not due:
            return
        self._producer.begin_transaction()
        for key in due:
            value = self._table.get(key)
            if value is not None and self._offset(key) >= self._published:
                self._producer.produce(self._topic, value)
            self._table.delete(key)  # Committed later. Until then the place tells that it was published.
        end = TopicPartition(self._part.topic, self._part.partition, committed)
        self._producer.send_offsets_to_transaction([end], self._group, _WAIT_S)
        self._producer.commit_transaction(_WAIT_S)
        self._published = committed

    def _offset(self, key: bytes) -> int:
        return int(key.removeprefix(self._prefix))


def apply(table: State, outbox: Outbox, message: Message) -> None:
    """Count a word, and add its output record if it is due."""
    word = message.value() or b""
    word_counts.count(table, b"word/" + word)
    times = int(table[b"word/" + word])
    if times % EVERY == 0:
        outbox.put(message.offset() or 0, b"%s %d" % (word, times))


def work(place: Place) -> None:
    """Run a worker until Ctrl-C or SIGTERM. An outbox is opened, published and closed with its partition's table."""
    outboxes: dict[int, Outbox] = {}

    def on_open(partition: int, table: State) -> None:
        outboxes[partition] = Outbox(place, table, partition)
        on_commit(partition, table)  # publishes what an earlier run committed

    def on_commit(partition: int, table: State) -> None:
        outboxes[partition].publish(int(table.progress["offset"]))

    def on_close(partition: int, _: State) -> None:
        del outboxes[partition]

    consumer = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    if place.member:
        consumer["group.instance.id"] = place.member
    topic = InputTopic(place.topic, consumer)
    hooks = WorkerHooks(on_open=on_open, on_commit=on_commit, on_close=on_close)
    with statelog.worker(place.name, place.where, topic=topic, hooks=hooks, create=True) as worker:
        on_signal(worker.stop)
        for message, table in worker:
            apply(table, outboxes[message.partition() or 0], message)
            worker.commit_every(0.05)


def one_table(place: Place) -> None:
    """Do the same with one table for all partitions, without a group, until Ctrl-C or SIGTERM."""
    stopped = Event()
    on_signal(stopped.set)
    reader = {"group.id": place.name, "enable.auto.commit": False}  # the place in the topic is in the table's commits
    with (
        statelog.table(place.name, place.where, create=True) as table,
        closing(Consumer({**place.kafka, **reader})) as consumer,
    ):
        outboxes = [Outbox(place, table, partition) for partition in range(PARTITIONS)]
        progress = {str(one): int(table.progress.get(str(one), 0)) for one in range(PARTITIONS)}
        consumer.assign([TopicPartition(place.topic, int(one), offset) for one, offset in progress.items()])
        while not stopped.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                partition = message.partition() or 0
                apply(table, outboxes[partition], message)
                progress[str(partition)] = (message.offset() or 0) + 1
            for partition, outbox in enumerate(outboxes):
                outbox.publish(int(table.progress.get(str(partition), 0)))
            table.commit_every(0.05, progress)  # the last statement: the end of the block commits what is not due yet


def fill(place: Place) -> int:
    """Put the words of a text into the topic, and make the output topic. Returns the number of words."""
    admin = AdminClient(place.kafka)
    output = f"{place.name}-output"
    if output not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(output, 1, 1)])[output].result()
    return word_counts.fill(place, PARTITIONS)


def clean(place: Place) -> None:
    """Delete topics and log."""
    admin, output = AdminClient(place.kafka), f"{place.name}-output"
    admin.delete_topics([output])[output].exception()
    place.clean()


def check(place: Place) -> bool:
    """Tell whether the output is right for all words in the topic."""
    expected, counts = Counter[bytes](), dict[tuple[int, bytes], int]()
    for message in place.read():
        word = message.partition() or 0, message.value() or b""
        counts[word] = counts.get(word, 0) + 1
        if counts[word] % EVERY == 0:
            expected[b"%s %d" % (word[1], counts[word])] += 1
    found = Counter(_published(place))
    there, there_is = (sum(one.values()) for one in (expected, found))
    is_exact = found == expected
    print(f"{there_is} of {there} records came out: {'exact' if is_exact else 'not all yet, or WRONG'}")
    return is_exact


def _published(place: Place) -> Iterator[bytes]:
    """Yield all output records so far, as read with isolation.level=read_committed."""
    reader = {"group.id": "plain-reader", "enable.auto.commit": False, "enable.partition.eof": True}
    with closing(Consumer({**place.kafka, **reader, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(f"{place.name}-output", 0, 0)])
        while (message := consumer.poll(30.0)) is not None and not message.error():
            yield message.value() or b""


if __name__ == "__main__":
    sys.exit(main("outbox", {"work": work, "table": one_table, "input": fill, "check": check, "clean": clean}))
