"""`Workplace`: what a worker works with: its input, the way to its tables, and the way into its group."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statelog.errors import NotFound
from statelog.recovery.host import Start
from statelog.seams import Seams
from statelog.storage import Kafka, OffsetRange
from statelog.storage.kafka.group import GroupListener, GroupMember
from statelog.tables.table import Table
from statelog.tables.working.hooks import Hooks
from statelog.tables.working.input import Input, InputStart
from statelog.tables.working.reserves import Reserves

__all__ = ["Join", "Workplace", "describe_input"]

Join = Callable[[GroupListener, Callable[[str], None]], GroupMember]
"""Makes the member of the group: of who is told, and what notes are told to."""


def describe_input(kafka: Kafka, topic: str) -> Input:
    """The input topic, as it is now. Raises NotFound, Unavailable."""
    found = kafka.describe_topic(topic)
    if found is None:
        raise NotFound(f"there is no topic {topic}", hint="Make the input topic first", topic=topic)
    return Input(topic=topic, topic_id=found.topic_id, partitions=found.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Of one worker, on the log `name`, whose key groups are the partitions of the topic.

    `open_table` opens the table of a partition, which fences its former owner, if it is told so beside a directory that
    is in use; `start_opening` begins that, on a thread of its own. `release` closes `kafka`, the cluster of the input,
    and what else is here.
    """

    name: str
    topic: str
    key_groups: int
    kafka: Kafka
    open_table: Callable[[int, bool], Table[Any, Any]]
    start_opening: Start
    reserves: Reserves
    join: Join
    start: InputStart
    accepts_input_loss: bool
    unsent_max: int
    seams: Seams
    release: Callable[[], None]
    hooks: Hooks

    def input(self) -> Input:
        """The input topic, as it is now. Raises NotFound, Unavailable."""
        return describe_input(self.kafka, self.topic)

    def available(self, partition: int) -> OffsetRange:
        """Log start and log end of a partition of the input, now. Raises NotFound, Unavailable."""
        return self.kafka.offsets(self.topic, [partition])[partition]
