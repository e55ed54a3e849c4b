"""A light, steady load: 640 messages a second in 8 and in 64 partitions, with a commit of each partition a second.

The cost of a process is its CPU time per second, and its threads. The floor of a worker is a plain client that fills a
dict, and sends a record for each partition a second without any guarantee. The baseline is Quix Streams, if the
environment names it, at-least-once and exactly once. Each runs alone, over a topic of its own.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import Figure, medians
from bench.setting import Setting

__all__ = ["light"]

_PROGRAM = Path(__file__).parent / "programs" / "light_load.py"
_MESSAGES = 640
_PARTITIONS = (8, 64)
_WARM_S, _SECONDS = 6.0, 8.0
_FLOOR = "floor: a plain client"


def light(setting: Setting) -> list[Figure]:
    """Measure the CPU milliseconds per second, and the threads."""
    return [figure for partitions in _PARTITIONS for figure in _of(setting, partitions)]


def _of(setting: Setting, partitions: int) -> list[Figure]:
    quix = os.environ.get("STATELOG_BENCH_QUIX")
    whose = {"ours": sys.executable, "plain": sys.executable}
    whose |= {"quix": quix, "quix-exactly-once": quix} if quix else {}
    took: dict[str, list[dict[str, float]]] = {who: [] for who in whose}
    for _ in range(setting.rounds):
        for who, python in whose.items():
            took[who].append(_run(setting, who, python, partitions))
    names = {"plain": _FLOOR, "quix": "Quix Streams", "quix-exactly-once": "Quix Streams, exactly once"}
    cpu = {who: [1e3 * one["cpu_s"] / one["wall_s"] for one in found] for who, found in took.items()}
    threads = {who: [one["threads"] for one in found] for who, found in took.items()}
    work = f"worker of {partitions} partitions, {_MESSAGES} messages a second"
    others = [who for who in whose if who != "ours"]
    return [
        *(medians(f"{work}, CPU", "ms/s", cpu["ours"], names[who], cpu[who]) for who in others),
        *(medians(f"{work}, threads", "", threads["ours"], names[who], threads[who]) for who in others),
    ]


def _run(setting: Setting, who: str, python: str, partitions: int) -> dict[str, float]:
    with _fed(setting.bootstrap, partitions) as topic:
        command = [python, str(_PROGRAM), who, setting.bootstrap, str(setting.root), topic, str(_WARM_S), str(_SECONDS)]
        run = subprocess.run(  # noqa: S603 - our own program, and an interpreter that the environment names
            command, capture_output=True, text=True, timeout=120, check=False
        )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{who} printed no result: {run.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


@contextmanager
def _fed(bootstrap: str, partitions: int) -> Generator[str]:
    """Yield a topic that gets messages steadily in the block."""
    name, client = f"light-{uuid.uuid4().hex[:8]}", AdminClient({"bootstrap.servers": bootstrap})
    made = {name: partitions, f"{name}-out": 1}
    for future in client.create_topics([NewTopic(one, count, 1) for one, count in made.items()]).values():
        future.result()
    is_over = Event()
    feeding = Thread(target=_feed, args=(bootstrap, name, partitions, is_over))
    feeding.start()
    try:
        yield name
    finally:
        is_over.set()
        feeding.join()
        for future in client.delete_topics(list(made)).values():
            future.result()


def _feed(bootstrap: str, topic: str, partitions: int, is_over: Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    started_s, number = time.monotonic(), 0
    while not is_over.wait(0.05):
        while number < (time.monotonic() - started_s) * _MESSAGES:
            producer.produce(topic, bytes(100), b"key-%06d" % (number % 5000), partition=number % partitions)
            number += 1
        producer.poll(0)
    producer.flush()
