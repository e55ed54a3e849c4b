"""Quix Streams' part of `python -m bench table-loop` and `outputs`: get and put of every record of a topic.

    python quix_loop.py BOOTSTRAP TOPIC RECORDS WARM DIRECTORY WHAT GUARANTEE

Runs in an environment with `quixstreams` and without this project: they need different versions of confluent-kafka.
Prints the seconds on the clock and the CPU seconds from record number `warm` on. WHAT is `topic`: an application over
the topic, up to its last record; `send=TARGET`: the same, and each value goes to another topic, too; or `state`: the
records are in memory, and get, put and commit of the state are called as by an application, including the last commit.
GUARANTEE is `at-least-once` or `exactly-once`.

The state is in RocksDB with its changelog topic, and is committed every second. Values are bytes: JSON would be slower.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

_BATCH = 1000


class Clock:
    """Counts records, and prints the time from record `warm` on."""

    def __init__(self, warm: int) -> None:
        self.seen = 0
        self._warm = warm

    def step(self) -> None:
        """Count one more record."""
        self.seen += 1
        if self.seen == self._warm:
            self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()

    def show(self) -> None:
        """Print one line of JSON."""
        wall_s, cpu_s = time.perf_counter() - self._started_s, time.process_time() - self._started_cpu_s
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


def main(bootstrap: str, topic: str, records: int, warm: int, directory: str, what: str, guarantee: str) -> None:
    """Run the application until it has processed all records."""
    quix: Any = importlib.import_module("quixstreams")
    found = _records(bootstrap, topic, records) if what == "state" else []
    app = quix.Application(
        broker_address=bootstrap,
        consumer_group=f"{topic}-{what.partition('=')[0]}-{guarantee}",
        processing_guarantee=guarantee,
        state_dir=directory,
        auto_offset_reset="earliest",
        commit_interval=1.0,
        loglevel="ERROR",
        producer_extra_config={"linger.ms": 10, "compression.type": "lz4"},
        consumer_extra_config={"session.timeout.ms": 6000, "fetch.queue.backoff.ms": 2},
    )
    frame = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))
    clock = Clock(warm)

    def of_topic(value: bytes, state: Any) -> None:
        state.get_bytes("v")
        state.set_bytes("v", value)
        clock.step()
        if clock.seen == records:
            clock.show()

    def of_memory(_value: bytes, _state: Any) -> None:
        context, place = frame.processing_context, quix.message_context()
        for key, value in found:
            transaction = context.checkpoint.get_store_transaction(frame.stream_id, place.partition)
            state = transaction.as_state(prefix=key)
            state.get_bytes("v")
            state.set_bytes("v", value)
            clock.step()
            if not clock.seen % _BATCH:
                context.commit_checkpoint()  # If it is due.
        context.commit_checkpoint(force=True)
        clock.show()
        os._exit(0)

    frame.update(of_memory if what == "state" else of_topic, stateful=True)
    if what.startswith("send="):
        frame.to_topic(app.topic(what.partition("=")[2], key_serializer="bytes", value_serializer="bytes"))
    app.run(count=records)


def _records(bootstrap: str, topic: str, records: int) -> list[tuple[bytes, bytes]]:
    client: Any = importlib.import_module("confluent_kafka")
    consumer = client.Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-records"})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([client.TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[tuple[bytes, bytes]] = []
    while len(found) < records:
        found += [(one.key(), one.value()) for one in consumer.consume(_BATCH, 1.0) if one.key()]
    consumer.close()
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:8])
