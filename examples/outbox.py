"""Output records of a state, exactly once: `table.send` makes them part of the commit.

    statelog dev start                          # a Kafka on 127.0.0.1:9092
    python -m examples.outbox input             # puts words into a topic of three partitions; again for more
    python -m examples.outbox                   # a worker: in as many terminals as you like, while words come in
    python -m examples.outbox check             # compares what came out with what a plain loop over the topic says
    python -m examples.outbox clean             # deletes topics and log
    python -m examples.outbox table --name one  # the same with one table, for an input of its own (`input --name one`)

Words are counted, and every fifth occurrence of a word makes an output record. It leaves with the commit that counts
that occurrence, or never. Kill any process with SIGKILL, at any moment: readers with isolation.level=read_committed see
each record once, and those of one word in their order.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from threading import Event

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import statelog
from examples import word_counts
from examples.topic import Place, main, on_signal
from statelog.tables import InputTopic, Table

__all__ = ["check", "clean", "fill", "one_table", "work"]

PARTITIONS = 3
EVERY = 5


def apply(table: Table[bytes, bytes], output: str, message: Message) -> None:
    """Count a word, and send its output record if this is a fifth occurrence."""
    word = message.value() or b""
    word_counts.count(table, word)
    times = int(table[word])
    if times % EVERY == 0:
        table.send(output, b"%s %d" % (word, times), key=word)


def work(place: Place) -> None:
    """Run a worker until Ctrl-C or SIGTERM."""
    consumer = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    if place.member:
        consumer["group.instance.id"] = place.member
    topic = InputTopic(place.topic, consumer)
    with statelog.worker(place.name, place.where, topic=topic, create=True) as worker:
        on_signal(worker.stop)
        for message, table in worker:
            apply(table, _output(place), message)
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
        progress = {str(one): int(table.progress.get(str(one), 0)) for one in range(PARTITIONS)}
        consumer.assign([TopicPartition(place.topic, int(one), offset) for one, offset in progress.items()])
        while not stopped.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                apply(table, _output(place), message)
                progress[str(message.partition())] = (message.offset() or 0) + 1
            table.commit_every(0.05, progress)  # the last statement: the end of the block commits what is not due yet


def fill(place: Place) -> int:
    """Put the words of a text into the topic, and make the output topic. Returns the number of words."""
    admin = AdminClient(place.kafka)
    if _output(place) not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(_output(place), PARTITIONS, 1)])[_output(place)].result()
    return word_counts.fill(place, PARTITIONS)


def clean(place: Place) -> None:
    """Delete topics and log."""
    admin = AdminClient(place.kafka)
    admin.delete_topics([_output(place)])[_output(place)].exception()
    place.clean()


def check(place: Place) -> bool:
    """Tell whether the output is right for all words in the topic: each record once, and those of a word in order."""
    counts, expected, found = dict[bytes, int](), dict[bytes, list[int]](), dict[bytes, list[int]]()
    for message in place.read():
        word = message.value() or b""
        counts[word] = counts.get(word, 0) + 1
        if counts[word] % EVERY == 0:
            expected.setdefault(word, []).append(counts[word])
    for record in _published(place):
        word, times = record.rsplit(b" ", 1)
        found.setdefault(word, []).append(int(times))
    is_exact = found == expected
    there, there_is = (sum(map(len, one.values())) for one in (expected, found))
    print(f"{there_is} of {there} records came out: {'exact' if is_exact else 'not all yet, or WRONG'}")
    return is_exact


def _output(place: Place) -> str:
    return f"{place.name}-output"


def _published(place: Place) -> Iterator[bytes]:
    """Yield all output records so far, as read with isolation.level=read_committed."""
    reader = {"group.id": "plain-reader", "enable.auto.commit": False, "enable.partition.eof": True}
    with closing(Consumer({**place.kafka, **reader, "isolation.level": "read_committed"})) as consumer:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(_output(place), partition, 0)])
            while (message := consumer.poll(30.0)) is not None and not message.error():
                yield message.value() or b""


if __name__ == "__main__":
    sys.exit(main("outbox", {"work": work, "table": one_table, "input": fill, "check": check, "clean": clean}))
