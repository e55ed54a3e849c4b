"""Messages of a table's commits, on twin and broker: once and in order, whatever ends the lives that send them."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Literal

import pytest

from statelog.environment import CrashPoint, inline
from statelog.errors import StatelogError
from statelog.log import Log
from statelog.producer import Writer
from statelog.reading import OutputReader
from statelog.schemas.outputs.output import Output
from statelog.tables import TableSettings
from statelog.tables.publishing.publisher import Publisher
from statelog.testing import Crash, crash_at, environment
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.kafka import read_committed, spec_of
from tests.support.rigs.log import LogRig
from tests.support.told import lines

_STEPS = ("outputs-started", "outputs-sent", "outputs-committed")
OutputsMode = Literal["exactly-once", "at-least-once"]
_PARTITIONS = 3


@pytest.fixture
def target(rig: LogRig) -> Generator[str]:
    """Yield a topic for messages."""
    name = f"{rig.name}-out"
    with closing(rig.kafka()) as kafka:
        kafka.create_topic(spec_of(name, _PARTITIONS))
        yield name
        kafka.delete_topic(name)


def committed(rig: LogRig, topic: str) -> list[list[Output]]:
    """Return the messages of each partition, as a new `read_committed` reader sees them."""
    with closing(rig.kafka()) as kafka:
        read: Callable[[int], list[Output]] = (
            partial(kafka.cluster.outputs, topic)
            if isinstance(kafka, MemoryKafka)
            else partial(read_committed, rig.bootstrap, topic)
        )
        return [read(partition) for partition in range(_PARTITIONS)]


@contextmanager
def living(
    rig: LogRig, *, crash: CrashPoint | None = None, outputs: OutputsMode = "exactly-once"
) -> Generator[tuple[Writer, Publisher]]:
    """Open the log, its writer and a publisher, which nobody closes."""
    parts = {} if crash is None else {"crash": crash, "start": inline}
    with environment(**parts), rig.open() as log, Writer(log, "w") as writer:
        settings = TableSettings(outputs=outputs, outputs_patience_s=30.0)
        publisher = Publisher(log, writer, settings, reader=OutputReader(log, "w"))
        try:
            yield writer, publisher
        finally:
            if crash is None:
                publisher.close(20.0, is_settled=True)


def commit(writer: Writer, publisher: Publisher, topic: str, *numbers: int) -> None:
    """Commit messages, each to the partition of its number, and have them published."""
    publisher.claim()
    for number in numbers:
        writer.send(topic, b"%d" % number, partition=number % _PARTITIONS)
    writer.put(b"n", b"%d" % numbers[-1])
    writer.commit()
    publisher.wake(len(numbers))
    publisher.check()


@pytest.mark.parametrize("outputs", ["exactly-once", "at-least-once"])
def test_every_message_comes_in_order(rig: LogRig, log: Log, target: str, outputs: OutputsMode) -> None:
    """Lives that die at each step, or are just left, and whole ones: each message comes, in the order of the commits.

    With transactions it comes once. Without, one that comes again has the same mark.
    """
    count = 0
    for life in range(7):
        step = crash_at(_STEPS[life % 3], 1 + life // 3) if life < 6 else None
        with lines(), suppress(Crash), living(rig, crash=step, outputs=outputs) as (writer, publisher):
            publisher.wake()
            for _ in range(3):
                numbers = range(count, count + 4)
                count += 4
                commit(writer, publisher, target, *numbers)
    for partition, messages in enumerate(committed(rig, target)):
        found = [(int(one.value or b""), dict(one.headers)["statelog"]) for one in messages]
        once = list(dict.fromkeys(found))
        assert [number for number, _ in once] == list(range(partition, count, _PARTITIONS))
        assert len({mark for _, mark in once}) == len(once)
        if outputs == "exactly-once":
            assert found == once


def test_a_successor_takes_over(rig: LogRig, log: Log, target: str) -> None:
    """Two owners in turn, the first of which is left alive: it publishes nothing more, and stops nobody."""
    with living(rig, crash=lambda _: None) as (first, old):
        commit(first, old, target, 0, 1, 2)
        with living(rig) as (second, new):
            new.wake()
            commit(second, new, target, 3, 4, 5)
            with suppress(StatelogError):
                commit(first, old, target, 90, 91, 92)
            old.wake()
            commit(second, new, target, 6, 7, 8)
        second_life = [[int(one.value or b"") for one in part] for part in committed(rig, target)]
        assert second_life == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_large_commits_are_listed_chunks(rig: LogRig, log: Log, target: str) -> None:
    """Messages too large for a ledger record come from the data topic, with keys, headers and tombstones."""
    with living(rig) as (writer, publisher):
        publisher.claim()
        for number in range(40):
            value = None if number % 7 == 3 else bytes([number]) * 30_000
            writer.send(target, value, b"key", {"kind": b"%d" % number}, partition=1)
        writer.commit()
        publisher.wake(40)
    found = committed(rig, target)[1]
    assert [one.value for one in found] == [None if n % 7 == 3 else bytes([n]) * 30_000 for n in range(40)]
    assert [dict(one.headers)["kind"] for one in found] == [b"%d" % n for n in range(40)]
    assert {one.key for one in found} == {b"key"}
