"""The target topic of tables that send, on twins or on a broker, and what a committed reader sees of it."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from statelog.kafka.port import TopicSpec
from statelog.schemas.outputs.output import Output
from tests.support.processes.committed_reader import CommittedReader
from tests.support.rigs.log import LogRig, TwinRig
from tests.support.waiting import wait_for

__all__ = ["Target", "made_target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, and a way to read all that a reader with `read_committed` sees of it now."""

    topic: str
    read: Callable[[], list[Output]]

    def await_values(self, count: int) -> list[bytes | None]:
        """Wait until so many messages are there, and return the values of all, partition by partition."""
        wait_for(lambda: len(self.read()) >= count, f"fewer than {count} messages came", timeout_s=30.0, tick_s=0.02)
        return [one.value for one in self.read()]

    def await_numbers(self, count: int) -> list[int]:
        """Wait until so many messages are there, and return the numbers that they are."""
        return [int(one or b"-1") for one in self.await_values(count)]


@contextmanager
def made_target(rig: LogRig, partitions: int = 2) -> Generator[Target]:
    """Make a target of a log's tables, and yield it."""
    topic = f"{rig.name}-target"
    with closing(rig.kafka()) as kafka:
        kafka.create_topic(TopicSpec(name=topic, partitions=partitions, replication_factor=1))
        if isinstance(rig, TwinRig):
            cluster = rig.cluster
            yield Target(topic, lambda: [one for at in range(partitions) for one in cluster.outputs(topic, at)])
            return
        with CommittedReader(rig.bootstrap, topic, partitions) as reader:
            yield Target(topic, lambda: reader.records)
