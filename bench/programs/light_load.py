"""One process of `python -m bench light`: get and put of every record of a slow topic, with a commit a second.

    python light_load.py WHO BOOTSTRAP ROOT TOPIC WARM_S SECONDS

Prints the seconds on the clock, the CPU seconds and the number of threads, from WARM_S on. WHO is `ours`, a worker, or
`plain`, a client that fills a dict and sends a record for each partition a second. In an environment that has
`quixstreams` it may also be `quix` or `quix-exactly-once`.
"""

import importlib
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def main(who: str, bootstrap: str, root: str, topic: str, warm_s: float, seconds: float) -> None:
    """Run until the measurement ends."""
    threading.Thread(target=_measure, args=(warm_s, seconds), daemon=True).start()
    if who == "ours":
        _ours(bootstrap, root, topic)
    elif who == "plain":
        _plain(bootstrap, topic)
    else:
        _quix(bootstrap, topic, "exactly-once" if "exactly" in who else "at-least-once")


def _measure(warm_s: float, seconds: float) -> None:
    time.sleep(warm_s)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    found = {
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - cpu_s,
        "threads": threading.active_count(),
    }
    with suppress(OSError):  # Only Linux shows the client's own threads.
        found["threads"] = len(list(Path("/proc/self/task").iterdir()))
    print(json.dumps(found), flush=True)
    os._exit(0)


def _ours(bootstrap: str, root: str, topic: str) -> None:
    import statelog

    waived = ("replication", "min-insync")
    where = statelog.Where({"bootstrap.servers": bootstrap}, root, allow_unsafe=waived, replication_factor=1)
    with statelog.worker(f"{topic}-state", where, topic=topic, create=True) as worker:
        for message, table in worker:
            key = message.key()
            table.get(key)
            table.put(key, message.value())
            worker.commit_every(1.0)


def _plain(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, Producer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-plain", "auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    consumer.subscribe([topic])
    state: dict[bytes, bytes] = {}
    news: dict[int, list[bytes]] = {}
    sent_s = time.monotonic()
    while True:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            key, value = message.key() or b"", message.value() or b""
            state[key] = value
            news.setdefault(message.partition() or 0, []).append(key + value)
        if time.monotonic() - sent_s >= 1.0:
            for changes in news.values():
                producer.produce(f"{topic}-out", b"".join(changes), partition=0)
            producer.flush()
            sent_s, news = time.monotonic(), {}


def _quix(bootstrap: str, topic: str, guarantee: str) -> None:
    quix: Any = importlib.import_module("quixstreams")
    app = quix.Application(
        broker_address=bootstrap,
        consumer_group=f"{topic}-{guarantee}",
        processing_guarantee=guarantee,
        state_dir=tempfile.mkdtemp(),
        auto_offset_reset="earliest",
        commit_interval=1.0,
        loglevel="ERROR",
    )
    frame = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))

    def keep(value: bytes, state: Any) -> None:
        state.get_bytes("v")
        state.set_bytes("v", value)

    frame.update(keep, stateful=True)
    app.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]), float(sys.argv[6]))
