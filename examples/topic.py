"""The base of the programs with a consumer group: their input topic, the place of their log, and their commands.

In a job of your own another program fills the topic, and the addresses come from the job's configuration.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from types import FrameType

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.errors import NotFound, StatelogError
from statelog.log import Log, Where

__all__ = ["Place", "main", "on_signal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The log `name`, and its input, the topic `<name>-input`; `where`: the place of the log for statelog's functions.

    `member`: the name of this process in the group, if it has one.
    """

    name: str
    bootstrap: str
    root: str
    member: str = ""

    @property
    def topic(self) -> str:
        """The input topic."""
        return f"{self.name}-input"

    @property
    def kafka(self) -> dict[str, str]:
        """The settings of Kafka's clients."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def where(self) -> Where:
        """The place of the log. The checks that one broker cannot pass are waived by name, never silently."""
        return Where(self.kafka, self.root, allow_unsafe=["replication", "min-insync"], replication_factor=1)

    def fill(self, messages: Iterable[tuple[bytes, bytes]], partitions: int) -> None:
        """Create the topic if it does not exist, and add messages to it; those of one key go to one partition."""
        admin = AdminClient(self.kafka)
        if self.topic not in admin.list_topics(timeout=10).topics:
            admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result()
        producer = Producer({**self.kafka, "enable.idempotence": True})
        for key, value in messages:
            producer.produce(self.topic, value, key)
            producer.poll(0)
        producer.flush()

    def read(self) -> Iterator[Message]:
        """Yield all messages of the topic so far, partition by partition."""
        topics = AdminClient(self.kafka).list_topics(timeout=10).topics  # Asking for one topic may create it.
        if self.topic not in topics:
            raise NotFound(f"there is no topic {self.topic}")
        reader = {"group.id": "plain-reader", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        with closing(Consumer({**self.kafka, **reader})) as consumer:
            for partition in topics[self.topic].partitions:
                offset, end = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=10)
                consumer.assign([TopicPartition(self.topic, partition, offset)])
                while offset < end:
                    message = consumer.poll(30.0)
                    if message is None:
                        raise TimeoutError(f"no answer from Kafka for {self.topic}, partition {partition}")
                    if not message.error():
                        yield message
                        offset = (message.offset() or 0) + 1

    def clean(self) -> None:
        """Delete topic and log, if they exist."""
        admin = AdminClient(self.kafka)  # It must live until its answers are complete.
        admin.delete_topics([self.topic])[self.topic].exception()
        try:
            Log.delete(self.name, self.where)
        except NotFound:
            return


def on_signal(stop: Callable[[], object]) -> None:
    """Call `stop` at Ctrl-C and SIGTERM."""

    def heard(_number: int, _frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, heard)


def main(name: str, commands: Mapping[str, Callable[[Place], object]]) -> int:
    """Run the named command, by default the first. A command that returns False, or raises, has failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="?", choices=commands, default=next(iter(commands)))
    parser.add_argument("--name", default=name)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--root", default=str(Path(gettempdir(), "statelog")))
    parser.add_argument("--member", default="", help="an optional name of this process in the group")
    given = parser.parse_args()
    place = Place(name=given.name, bootstrap=given.bootstrap, root=given.root, member=given.member)
    try:
        return 1 if commands[given.command](place) is False else 0
    except NotFound as error:
        print(f"error: {error.message}; run the command `input` first", file=sys.stderr)
    except StatelogError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1
