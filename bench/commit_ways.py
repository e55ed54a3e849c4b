"""The ways to make one commit: a writer's, and its floor; and the latencies of many, one after the other.

The floor is the work that every commit needs, by a writer's client: hash keys, make and send a chunk for each
partition, and once all are acknowledged, send a record of a commit's size to the ledger. It checks, stores and decides
nothing.
"""

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import count

from bench.workload import Pairs
from statelog.kafka.port import Delivery
from statelog.log import Log
from statelog.producer import Writer
from statelog.schemas.changes.chunk import encode_chunk
from statelog.schemas.changes.few import FewChanges
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import ORIGIN

__all__ = ["Commit", "Way", "commits_of", "latencies", "least_commits", "without_garbage"]

Commit = Callable[[Pairs], object]
"""Puts some changes, and commits them."""
Way = Callable[[Sequence[int] | None], AbstractContextManager[Commit]]
"""Yields the commits of some partitions; None: of all."""


@contextmanager
def commits_of(log: Log, partitions: Sequence[int] | None = None) -> Generator[Commit]:
    """Yield the commits of a new writer of these partitions; None: of all."""
    with Writer(log, f"bench-{partitions[0] if partitions else ''}", partitions=partitions) as writer:

        def commit(changes: Pairs) -> None:
            for key, value in changes:
                writer.put(key, value)
            writer.commit({"offset": "42"})

        yield commit


@contextmanager
def least_commits(log: Log, partitions: Sequence[int] | None = None) -> Generator[Commit]:
    """Yield the floor of those commits; nobody can read the records that it leaves in the log."""
    of, numbers = log.descriptor, count()
    entry = bytes(400 + 90 * (len(partitions) if partitions else of.partitions))  # As large as such a commit.
    with closing(log.kafka.producer()) as producer:

        def acknowledged(topic: str, records: list[tuple[int, bytes]]) -> None:
            told: list[Delivery] = []
            for partition, value in records:
                producer.send(topic, partition, value, told.append)
            while len(told) < len(records):
                producer.poll(0.2)
            assert all(one.offset >= 0 for one in told)

        def commit(changes: Pairs) -> None:
            acknowledged(log.data_topic, _chunks(of, next(numbers), changes))
            acknowledged(log.ledger_topic, [(0, entry)])

        yield commit


def _chunks(of: Descriptor, number: int, changes: Pairs) -> list[tuple[int, bytes]]:
    keys, values = zip(*changes, strict=True)
    chunk = partial(
        encode_chunk, epoch=0, nonce=bytes(16), sqn=number, index=0, value_schema_id=0, witness=ORIGIN, key=of.seal_key
    )
    return [
        (partition, chunk(key_groups=few.groups, body=memoryview(few.serialize())).value)
        for partition, few in FewChanges.of(keys, values, of.key_groups).split(of.partitions, of.key_groups)
    ]


def latencies(commit: Commit, sets: Sequence[Pairs], pause_s: float = 0.0) -> list[float]:
    """Return the seconds of each commit, with a pause of `pause_s` between two of them."""
    found: list[float] = []
    for changes in sets:
        if pause_s:
            time.sleep(pause_s)
        started_s = time.perf_counter()
        commit(changes)
        found.append(time.perf_counter() - started_s)
    return found


def without_garbage() -> None:
    """Exclude all existing objects from later garbage collections, so that timed code pays for its own objects only."""
    gc.collect()
    gc.freeze()
