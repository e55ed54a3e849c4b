"""What it costs to open a log, and a writer on it: milliseconds of this process's processors, and on the clock.

The floor is what no way into Kafka can do without: a client that connects, asks for the topics, and ends; for a writer,
also one that reads a record, and one that sends one. Each log is opened with clients of its own, as by a program that
starts; the modules are loaded, and all is open once before.
"""

from confluent_kafka.admin import AdminClient

import statelog
from bench.figures import Figure, Took, medians, timed
from bench.logs import bench_log, bench_where
from bench.plain import PlainTopic, plain_topic
from bench.setting import Setting
from statelog.producer import Writer

__all__ = ["opens"]

_TIMES = 10
_FLOOR = "floor: a client asks for the topics"
_WRITERS_FLOOR = "floor: clients ask, read one record, send one"


def opens(setting: Setting) -> list[Figure]:
    """Medians of ten openings a round, each beside the floor's."""
    with bench_log(setting.bootstrap, setting.root) as log, plain_topic(setting.bootstrap, partitions=1) as topic:
        where = bench_where(setting.bootstrap, setting.root)

        def open_log() -> None:
            statelog.open(log.name, where).close()

        def open_writer() -> None:
            with statelog.open(log.name, where) as opened:
                Writer(opened, "bench").close()

        def ask() -> None:
            AdminClient({"bootstrap.servers": setting.bootstrap}).list_topics(timeout=10)

        def ask_read_send() -> None:
            ask()
            _read_and_send(topic)

        ways = {
            "open a log": open_log, _FLOOR: ask, "open a log and a writer": open_writer, _WRITERS_FLOOR: ask_read_send,
        }  # fmt: skip
        took: dict[str, list[Took]] = {name: [] for name in ways}
        for turn in range(_TIMES * setting.rounds + 1):
            for name, way in ways.items():
                one = timed(way)
                if turn:
                    took[name].append(one)
    return [
        medians(
            f"{name}{label}",
            unit,
            [1e3 * each(one) for one in took[name]],
            floor,
            [1e3 * each(one) for one in took[floor]],
        )
        for name, floor in (("open a log", _FLOOR), ("open a log and a writer", _WRITERS_FLOOR))
        for label, unit, each in (("", "ms", float), (", by CPU", "CPU ms", _cpu_s))
    ]


def _read_and_send(topic: PlainTopic) -> None:
    """The record that made sure that the topic takes some, and another one."""
    consumer = topic.consumer()
    assert consumer.consume(1, 10)
    consumer.close()
    topic.send([(0, b"")])


def _cpu_s(took: Took) -> float:
    return took.cpu_s
