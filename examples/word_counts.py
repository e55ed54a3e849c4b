"""Counting words by a group of workers: exact, with any number of workers, whichever is killed at any time.

    statelog dev start                          # a Kafka on 127.0.0.1:9092
    python -m examples.word_counts input        # puts words into a topic of four partitions; again for more
    python -m examples.word_counts              # a worker: in as many terminals as you like, while words come in
    python -m examples.word_counts check        # compares the counts with those of a plain loop over the topic
    python -m examples.word_counts clean        # deletes topic and log

Kill any worker with SIGKILL: after six seconds its partitions go to another one, or at once to a new worker with its
name in the group (`python -m examples.word_counts --member a`). Each partition of the topic has a table, which moves
with it from worker to worker. Counts and the place in the partition are committed together.
"""

import re
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

import statelog
from examples.topic import Place, main, on_signal
from statelog.tables import InputTopic

__all__ = ["check", "count", "fill", "work"]

TEXT = Path(__file__).parent.parent / "LICENSE"
PARTITIONS = 4
THINKING_S = 0.001
"""The time of a word, so that there is something to see and to kill."""


def count(counts: MutableMapping[bytes, bytes], word: bytes) -> None:
    """Count a word. `counts` is a table, or any other mapping."""
    counts[word] = b"%d" % (int(counts.get(word, b"0")) + 1)


def work(place: Place) -> None:
    """Run a worker until Ctrl-C or SIGTERM."""
    # The time until a killed worker is noticed, and until the others learn of a change in the group.
    consumer = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    if place.member:
        consumer["group.instance.id"] = place.member
    topic = InputTopic(place.topic, consumer)
    with statelog.worker(place.name, place.where, topic=topic, create=True) as worker:
        on_signal(worker.stop)
        for message, counts in worker:
            time.sleep(THINKING_S)
            count(counts, message.value() or b"")
            worker.commit_every(0.2)  # after the message's last change


def fill(place: Place, partitions: int = PARTITIONS) -> int:
    """Put the words of a text into the topic, and return their number."""
    words = [word.lower() for word in re.findall(rb"\w+", TEXT.read_bytes())]
    place.fill(((word, word) for word in words), partitions)
    return len(words)


def check(place: Place) -> bool:
    """Tell whether the log has the counts of all words in the topic."""
    expected: dict[bytes, bytes] = {}
    for message in place.read():
        count(expected, message.value() or b"")
    with statelog.open(place.name, place.where) as log:
        found = {word: times for (_, word), times in statelog.recover(log, barrier=True).to_dict().items()}
    counted, there = (sum(map(int, counts.values())) for counts in (found, expected))
    is_exact = found == expected
    print(f"{counted} of {there} words are counted: {'exact' if is_exact else 'not all yet, or WRONG'}")
    return is_exact


if __name__ == "__main__":
    sys.exit(main("word-counts", {"work": work, "input": fill, "check": check, "clean": Place.clean}))
