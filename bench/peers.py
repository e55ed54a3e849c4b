"""The peers of a table: other libraries' keyed state, each in a process and an environment of its own.

    STATELOG_BENCH_QUIX     a Python interpreter that has `quixstreams`. It needs a confluent-kafka older than ours:
                            no environment has both, so no extra can name it
    STATELOG_BENCH_STREAMS  a directory with the jars of Kafka Streams: kafka-streams, and all its dependencies

A peer that is not named is left out, with a message.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cost import Cost

__all__ = ["Peer", "peers"]

_PROGRAMS = Path(__file__).parent / "programs"
_TIMEOUT_S = 600


class Peer:
    """One library: the command that runs its program, the kinds of work that it can do, and its `options`."""

    def __init__(self, name: str, command: Sequence[str], kinds: Sequence[str], *options: str) -> None:
        self.name = name
        self.kinds = kinds
        self._command = command
        self._options = options

    def loop(self, bootstrap: str, topic: str, records: int, warm: int, *what: str) -> Cost:
        """Return the cost of get and put of every record of a topic from record number `warm` on, as it reports."""
        with tempfile.TemporaryDirectory() as directory:
            arguments = [bootstrap, topic, str(records), str(warm), directory, *what, *self._options]
            run = subprocess.run(  # noqa: S603 - the command that the environment names
                [*self._command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"{self.name} printed no result: {run.stderr[-2000:]}")
        return Cost(**json.loads(lines[-1]))


def peers() -> list[Peer]:
    """Return the peers that the environment names. A message on stderr names those left out."""
    found: list[Peer] = []
    quix, streams = (os.environ.get(name) for name in ("STATELOG_BENCH_QUIX", "STATELOG_BENCH_STREAMS"))
    if quix:
        command = [quix, str(_PROGRAMS / "quix_loop.py")]
        found.append(Peer("Quix Streams", command, ("topic", "state"), "at-least-once"))
        found.append(Peer("Quix Streams, exactly once", command, ("topic", "send"), "exactly-once"))
    else:
        _left_out("Quix Streams", "STATELOG_BENCH_QUIX: a Python interpreter that has quixstreams")
    if streams:
        command = ["java", "-Xmx2g", "-cp", f"{streams}/*", str(_PROGRAMS / "StreamsLoop.java")]
        found.append(Peer("Kafka Streams", command, ("topic",), "rocksdb", "at_least_once"))
        found.append(Peer("Kafka Streams, in memory", command, ("topic",), "memory", "at_least_once"))
        found.append(Peer("Kafka Streams, exactly once", command, ("topic", "send"), "rocksdb", "exactly_once_v2"))
    else:
        _left_out("Kafka Streams", "STATELOG_BENCH_STREAMS: a directory with kafka-streams' jars")
    return found


def _left_out(name: str, hint: str) -> None:
    print(f"left out: the comparison with {name}; to have it, set {hint}", file=sys.stderr)
