"""Counting words by a group of workers: exact, however many there are, and whoever is killed and whenever.

    statelog dev start                          # a Kafka on 127.0.0.1:9092
    python -m examples.word_counts input        # puts words into a topic of four partitions; again for more
    python -m examples.word_counts              # a worker: in as many terminals as you like, while words come in
    python -m examples.word_counts check        # compares the counts with those of a plain loop over the topic
    python -m examples.word_counts clean        # deletes topic and log

Kill any worker with SIGKILL: after six seconds its partitions go to another one, or at once to one that is started with
its name in the group (`python -m examples.word_counts --member a`). Each partition of the topic has a table, which
moves with it from worker to worker; counts and the place in the partition are committed together.
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
"""How long a word takes: so that there is something to see, and to kill."""


def count(counts: MutableMapping[bytes, bytes], word: bytes) -> None:
    """What the program is about. `counts` is a table, or any other mapping."""
    counts[word] = b"%d" % (int(counts.get(word, b"0")) + 1)


def work(place: Place) -> None:
    """Be a worker, until Ctrl-C or SIGTERM."""
    # How soon a worker that was killed is missed, and how soon the others hear of a change in the group.
    consumer = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    if place.member:
        consumer["group.instance.id"] = place.member
    topic = InputTopic(place.topic, consumer)
    with statelog.worker(place.name, place.where, topic=topic, create=True) as worker:
        on_signal(worker.stop)
        for message, counts in worker:
            time.sleep(THINKING_S)
            count(counts, message.value() or b"")
            worker.commit_every(0.2)  # behind the last change that the message makes


def fill(place: Place, partitions: int = PARTITIONS) -> int:
    """Put the words of a text into the topic; returns how many."""
    words = [word.lower() for word in re.findall(rb"\w+", TEXT.read_bytes())]
    place.fill(((word, word) for word in words), partitions)
    return len(words)


def check(place: Place) -> bool:
    """Whether the log has the counts of all words that are in the topic now."""
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
