"""`Workplace`: what a worker works with: its input, the way to its tables, the way into its group, and its hooks.

`Hooks` are what a program does when a partition's table is open, now and then, behind a commit, and at the end:

    open ─► on_open ─► messages, on_tick ─► commits, each ─► on_commit ─► ... ─► the last ─► on_commit ─► on_close

Invariants:
- All run in the worker's thread, between two messages, and none inside of another.
- What they change is part of the table's next commit, but for `on_close`, whose table takes no more.
- `on_close` is called once for each `on_open`, whatever ended the table, and whatever else fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statelog.environment import Environment, Start
from statelog.errors import ConfigError, NotFound
from statelog.storage import Kafka
from statelog.storage.kafka import OffsetRange
from statelog.storage.kafka.group import GroupListener, GroupMember
from statelog.tables.table import Table
from statelog.tables.working.input import Input, InputStart
from statelog.tables.working.reserves import Reserves

__all__ = ["Hook", "Hooks", "Join", "Workplace", "describe_input"]

Hook = Callable[[int, Table[Any, Any]], object]
"""Takes a partition and its table. What it raises comes out of the loop, and ends the worker."""

Join = Callable[[GroupListener, Callable[[str], None]], GroupMember]
"""Makes the member of the group: of who is told, and what notes are told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one worker, and how many seconds lie between two ticks of a table. Raises ConfigError."""

    on_open: Hook | None = None
    on_tick: Hook | None = None
    on_commit: Hook | None = None
    on_close: Hook | None = None
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.tick_s > 0:
            raise ConfigError(f"tick_s is {self.tick_s} and must be positive", hint="Leave out on_tick for no ticks")


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
    environment: Environment
    release: Callable[[], None]
    hooks: Hooks

    def input(self) -> Input:
        """The input topic, as it is now. Raises NotFound, Unavailable."""
        return describe_input(self.kafka, self.topic)

    def available(self, partition: int) -> OffsetRange:
        """Log start and log end of a partition of the input, now. Raises NotFound, Unavailable."""
        return self.kafka.offsets(self.topic, [partition])[partition]
