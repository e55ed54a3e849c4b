"""Messages that leave with commits: what they add to a commit, and when a committed reader sees them.

The baseline of a commit with a message is the same commit without one. A message is seen so long after its commit has
returned. The baseline of that is a Kafka transaction with the message, from its begin, for which a plain loop waits. A
worker that sends a message for each of its input has the same worker without as its baseline, and the same loop of the
peers that are exactly once.
"""

import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

import statelog
from bench.cost import Cost
from bench.figures import Figure, latency, rate
from bench.logs import bench_log, bench_where
from bench.peers import Peer, peers
from bench.plain import CONSUMER, PARTITIONS, PRODUCER, PlainTopic, plain_topic
from bench.setting import Setting
from bench.workload import Pairs, batches, pairs
from statelog.log import Log
from statelog.tables import Table

__all__ = ["outputs"]

_WARM, _BLOCK = 20, 50
_PAUSE_S = 0.1
"""Between two messages whose time to be seen is measured."""
_CHANGES = 10
"""The changes of a commit: it is carried by its own record."""
_SEEN_TIMEOUT_S = 30.0


def outputs(setting: Setting) -> list[Figure]:
    """Measure milliseconds of commits and until messages are seen, and the rate of a worker."""
    few = pairs(batches(_CHANGES, _CHANGES))
    without, sending, seen, transactions = list[float](), list[float](), list[float](), list[float]()
    rates: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
    theirs: dict[Peer, list[tuple[int, float]]] = {peer: [] for peer in peers() if "send" in peer.kinds}
    for _ in range(setting.rounds):
        with plain_topic(setting.bootstrap) as target, _reader(setting, target) as saw:
            transactions += _transactions(setting, target, saw)
            with _table(setting) as quiet, _table(setting) as table:
                for _ in range(-(-setting.commits // _BLOCK)):  # In turns, block by block: a machine drifts.
                    without += _commits(quiet, few, None)
                    sending += _commits(table, few, target)
            with _table(setting) as table:
                seen += _seen(setting, table, few, target, saw)
    for _ in range(setting.rounds):
        for sends in (False, True):
            rates[sends].append(_worker(setting, sends=sends))
        for peer, found in theirs.items():
            found.append(_peer(setting, peer))
    plain, commit = "the same without a message", f"commit of {_CHANGES} changes and a message"
    count, took, each = rates[True][0][0], [one for _, one in rates[True]], "worker that sends a message for each"
    return [
        latency(f"{commit}, p50", 0.5, sending, plain, without),
        latency(f"{commit}, p99", 0.99, sending, plain, without),
        latency(
            "a message is seen after its commit, p50", 0.5, seen, "in a Kafka transaction of its own", transactions
        ),
        latency(
            "a message is seen after its commit, p99", 0.99, seen, "in a Kafka transaction of its own", transactions
        ),
        rate(each, count, took, "the same without", rates[False]),
        *(rate(each, count, took, peer.name, found) for peer, found in theirs.items()),
    ]


@contextmanager
def _table(setting: Setting) -> Generator[Table[bytes, bytes]]:
    with bench_log(setting.bootstrap, setting.root) as log:
        where = bench_where(setting.bootstrap, setting.root)
        with statelog.table(log.name, where) as table:
            yield table


def _commits(table: Table[bytes, bytes], few: Pairs, target: PlainTopic | None) -> list[float]:
    """Return the seconds of each commit of a block, with a message to the target if there is one."""
    found: list[float] = []
    for number in range(_BLOCK):
        for key, value in few:
            table.put(key, value)
        if target is not None:
            table.send(target.name, b"%d" % number)
        started_s = time.perf_counter()
        table.commit({"offset": number})
        found.append(time.perf_counter() - started_s)
    return found[_BLOCK // 5 :]


def _seen(setting: Setting, table: Table[bytes, bytes], few: Pairs, target: PlainTopic, saw: "_Saw") -> list[float]:
    """Return the seconds from the return of each commit until its message is seen."""
    found: list[float] = []
    for number in range(max(_WARM, setting.commits // 8)):
        time.sleep(_PAUSE_S)
        for key, value in few:
            table.put(key, value)
        name = uuid.uuid4().bytes
        table.send(target.name, name)
        table.commit({"offset": number})
        committed_s = time.perf_counter()
        found.append(max(0.0, saw.wait(name) - committed_s))
    return found[min(_WARM, len(found) // 5) :]


def _transactions(setting: Setting, target: PlainTopic, saw: "_Saw") -> list[float]:
    """Return the seconds from the begin of a transaction with one message until it is seen."""
    producer = Producer({
        "bootstrap.servers": setting.bootstrap, **PRODUCER, "linger.ms": 0, "transactional.id": uuid.uuid4().hex,
    })  # fmt: skip
    producer.init_transactions(30)
    found: list[float] = []
    for _ in range(max(_WARM, setting.commits // 8)):
        time.sleep(_PAUSE_S)
        name = uuid.uuid4().bytes
        started_s = time.perf_counter()
        producer.begin_transaction()
        producer.produce(target.name, name)
        producer.commit_transaction(30)
        found.append(saw.wait(name) - started_s)
    return found[min(_WARM, len(found) // 5) :]


class _Saw:
    """What a committed reader has seen, and when."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}
        self._arrived = threading.Condition()

    def note(self, name: bytes) -> None:
        """Note that a message is seen."""
        with self._arrived:
            self._times[name] = time.perf_counter()
            self._arrived.notify_all()

    def wait(self, name: bytes) -> float:
        """Wait for a message, and return when it was seen."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: name in self._times, _SEEN_TIMEOUT_S)
            return self._times[name]


@contextmanager
def _reader(setting: Setting, target: PlainTopic) -> Generator[_Saw]:
    """Yield what a committed reader sees of the target, on a thread of its own."""
    saw, is_over = _Saw(), threading.Event()
    settings = {**CONSUMER, "isolation.level": "read_committed", "group.id": uuid.uuid4().hex}
    consumer = Consumer({"bootstrap.servers": setting.bootstrap, **settings})
    consumer.assign([TopicPartition(target.name, one, 0) for one in range(PARTITIONS)])

    def read() -> None:
        while not is_over.is_set():
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                saw.note(message.value() or b"")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield saw
    is_over.set()
    thread.join()
    consumer.close()


def _worker(setting: Setting, *, sends: bool) -> tuple[int, float]:
    """Return how many messages a worker has processed, and in how many seconds, its last commit included."""
    name, where = f"bench-{uuid.uuid4().hex[:12]}", bench_where(setting.bootstrap, setting.root)
    few = pairs(batches(setting.scaled(0.02), setting.keys))
    seen, warm = 0, len(few) // 5
    with plain_topic(setting.bootstrap) as topic, plain_topic(setting.bootstrap) as target:
        topic.produce(few)
        started_s = time.perf_counter()
        with statelog.worker(name, where, topic=topic.name, create=True) as worker:
            for message, table in worker:
                key, value = message.key(), message.value()
                if key and value:  # Not a probe.
                    table.get(key)
                    table.put(key, value)
                    if sends:
                        table.send(target.name, value, key)
                    seen += 1
                worker.commit_every(1.0)
                if seen == warm:
                    started_s = time.perf_counter()
                if seen == len(few):
                    break
            worker.commit()
        took_s = time.perf_counter() - started_s
    Log.delete(name, where)
    return len(few) - warm, took_s


def _peer(setting: Setting, peer: Peer) -> tuple[int, float]:
    """Return the same of a peer's loop, which sends each value to a topic."""
    few = pairs(batches(setting.scaled(0.02), setting.keys))
    warm = len(few) // 5
    with plain_topic(setting.bootstrap) as topic, plain_topic(setting.bootstrap) as target:
        topic.produce(few)
        cost: Cost = peer.loop(setting.bootstrap, topic.name, len(few), warm, f"send={target.name}")
    return len(few) - warm, cost.wall_s
