"""A standby of a table that is seldom written: its cost while nothing is committed, and its delay after a commit.

The floor is a bare consumer of the ledger whose fetch waits at the broker. For a commit it sees only the ledger's
record, while a table's changes lie in the data topic. CPU time is that of this process.
"""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from random import Random

from confluent_kafka import Consumer, TopicPartition

import statelog
from bench.cost import in_turns
from bench.figures import Figure, latency, medians
from bench.logs import bench_log, bench_where
from bench.setting import Setting
from statelog.kafka.config import client_config, following_properties
from statelog.log import Log
from statelog.tables import Standby

__all__ = ["standby_idle"]

_IDLE_S, _SETTLED_S = 20.0, 2.0
_COMMITS = 100
_PAUSE_S = 0.3
_SLICE_S = 0.2
_IDLE, _SHOWN = "a standby while nothing is committed", "from commit to shown by a standby that waited"
_CONSUMER, _RECORD = "floor: a consumer that waits at the broker", "floor: the ledger's record at that consumer"


def standby_idle(setting: Setting) -> list[Figure]:
    """Measure the CPU time of twenty idle seconds, and the time from a commit's start to its value, in each round."""
    where = bench_where(setting.bootstrap, setting.root)
    with bench_log(setting.bootstrap, setting.root) as log:
        statelog.table(log.name, where).close()

        def idle_standby() -> float:
            with statelog.standby(log.name, where):
                return _cpu_ms(lambda: time.sleep(_IDLE_S))

        def idle_consumer() -> float:
            with _consumer(setting, log) as consumer:
                return _cpu_ms(lambda: _wait(consumer, _IDLE_S))

        def shown() -> list[float]:
            with statelog.standby(log.name, where) as standby:
                return _shown_s(setting, log, lambda value: _see(standby, value))

        def read() -> list[float]:
            with _consumer(setting, log) as consumer:
                return _shown_s(setting, log, lambda _: _wait(consumer, 10.0))

        idle = in_turns({_IDLE: idle_standby, _CONSUMER: idle_consumer}, warm=0, turns=setting.rounds)
        seen = in_turns({_SHOWN: shown, _RECORD: read}, warm=0, turns=setting.rounds)
    ours, floor = ([one for take in seen[name] for one in take] for name in (_SHOWN, _RECORD))
    return [
        medians(_IDLE, "CPU ms a second", idle[_IDLE], _CONSUMER, idle[_CONSUMER]),
        *(latency(f"{_SHOWN}, {name}", share, ours, _RECORD, floor) for name, share in (("p50", 0.5), ("p99", 0.99))),
    ]


@contextmanager
def _consumer(setting: Setting, log: Log) -> Generator[Consumer]:
    """Yield a consumer at the end of the ledger."""
    consumer = Consumer(following_properties(client_config({"bootstrap.servers": setting.bootstrap})))
    with closing(consumer):
        consumer.assign([TopicPartition(log.ledger_topic, 0, log.history.end())])
        yield consumer


def _cpu_ms(idle: Callable[[], object]) -> float:
    time.sleep(_SETTLED_S)
    cpu_s, began_s = time.process_time(), time.monotonic()
    idle()
    return 1e3 * (time.process_time() - cpu_s) / (time.monotonic() - began_s)


def _wait(consumer: Consumer, limit_s: float) -> None:
    """Wait for a record, and check now and then whether to stop, as a standby does."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        message = consumer.poll(_SLICE_S)
        if message is not None and message.error() is None:
            return


def _shown_s(setting: Setting, log: Log, see: Callable[[bytes], object]) -> list[float]:
    """Commit as the table's owner, at irregular moments, and return the time until each commit is visible."""
    random, took = Random(setting.rounds), list[float]()
    with statelog.table(log.name, bench_where(setting.bootstrap, setting.root)) as table:
        time.sleep(_SETTLED_S)
        see(table.get(b"key", b""))
        for number in range(_COMMITS):
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
            value = b"%d" % number
            began_s = time.perf_counter()
            table[b"key"] = value
            table.commit()
            see(value)
            took.append(time.perf_counter() - began_s)
    return took


def _see(standby: Standby[bytes, bytes], value: bytes) -> None:
    while standby.get(b"key", b"") != value:
        time.sleep(0.0005)
