"""The parts of a worker: its input topic, its hooks, and `WorkerContext`, which opens its tables and joins its group.

    progress of a table    {"offset": 42, "topic": "words", "topic_id": "..."}
    hooks                  open ─► on_open ─► messages, on_tick, on_due ─► commits, each ─► on_commit ─► ... ─► on_close

Invariants:
- An offset counts only for the topic that it was taken from, and not for another of the same name.
- `on_close` is called once for each `on_open`, whatever ended the table, and whatever else fails.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from statelog.environment import Environment
from statelog.errors import BeyondEnd, ConfigError, IdentityChanged, NotFound, OffsetGone, UnsafeTopic
from statelog.kafka import Kafka
from statelog.kafka.group import GroupListener, GroupMember
from statelog.kafka.port import OffsetRange
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.names import check_kind, parse_enum
from statelog.schemas.topic_policy import NO_TOPIC_ID, Waiver
from statelog.tables.standbys.standby import StandbyPool
from statelog.tables.table import Table

_RECREATED = "If it was re-created, begin with a new log: offsets of the old topic do not apply to the new one"
_GROWN = "Stop all workers, and begin with a new log that reads the whole input: keys may be in other partitions now"


class InputStart(StrEnum):
    """Where a table without progress begins to read its partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class InputTopic:
    """The Kafka topic that workers read, and how: `topic=InputTopic("words", start="latest")`. Raises ConfigError.

    consumer       librdkafka's settings of the group's member: `group.id` (by default the log's name), timeouts, and,
                   for a topic in another cluster than the log, `bootstrap.servers` and security. The assignor is
                   cooperative-sticky by default; with another one, each change in the group closes every table
    start          where a table without any commit begins: "earliest", or "latest"
    accept_loss    skip messages that the topic lost before a table processed them, instead of raising an error
    """

    name: str
    consumer: Mapping[str, str] = field(default_factory=dict[str, str])
    start: InputStart | str = InputStart.EARLIEST
    accept_loss: bool = False

    def __post_init__(self) -> None:
        check_kind("the input topic", self.name, str, example='InputTopic("words"), one topic for each worker')
        check_kind("consumer", self.consumer, Mapping, example='consumer={"group.id": "counts"}')
        object.__setattr__(self, "consumer", dict(self.consumer))
        check_kind("accept_loss", self.accept_loss, bool, example="True, which skips lost messages, or False")
        object.__setattr__(self, "start", parse_enum(InputStart, "start", self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedInput:
    """The input topic, as the cluster describes it now."""

    topic: str
    topic_id: str
    partitions: int

    def progress(self, next_offset: int) -> Metadata:
        """Return the progress of a commit that has processed everything below an offset."""
        return {"offset": next_offset, "topic": self.topic, "topic_id": self.topic_id}

    def check_is(self, now: "DescribedInput") -> None:
        """Raise IdentityChanged if `now` describes another topic, whose offsets do not apply.

        Raise ConfigError if the topic has grown: messages since may have keys whose state is in another partition.
        """
        if now.topic_id != self.topic_id:
            raise IdentityChanged(
                "the input was re-created while it was read",
                topic=self.topic,
                topic_id=now.topic_id,
                read_topic_id=self.topic_id,
                hint=_RECREATED,
            )
        now.check_covered(self.partitions)

    def check_covered(self, key_groups: int) -> None:
        """Raise ConfigError if the input has more partitions than its log has key groups."""
        if self.partitions > key_groups:
            raise ConfigError(
                "the input has more partitions than its log has key groups: it has grown",
                topic=self.topic,
                partitions=self.partitions,
                key_groups=key_groups,
                hint=_GROWN,
            )

    def start_offset(self, progress: Metadata | None, partition: int, available: OffsetRange, topic: InputTopic) -> int:
        """Return the offset at which to resume a partition, which has the offsets `available`.

        `progress`: of the table's last commit, None before the first. Raises ConfigError, IdentityChanged. Raises
        OffsetGone or BeyondEnd for a loss that the topic's `accept_loss` does not allow.
        """
        if progress is None:
            return available.start if topic.start is InputStart.EARLIEST else available.end
        offset = self.own_offset(progress, partition)
        if offset in range(available.start, available.end + 1):
            return offset
        is_gone = offset < available.start
        if topic.accept_loss:
            return available.start if is_gone else available.end
        kind, what = (OffsetGone, "starts above") if is_gone else (BeyondEnd, "ends below")
        raise kind(
            f"the input {what} the processed offset: records were lost",
            topic=self.topic,
            partition=partition,
            next_offset=offset,
            log_start=available.start,
            log_end=available.end,
            hint="Find out what was lost; to skip it, set InputTopic(..., accept_loss=True)",
        )

    def own_offset(self, progress: Metadata, partition: int) -> int:
        """Return the offset in a progress of this topic. Raises ConfigError, IdentityChanged."""
        offset, topic_id = progress.get("offset"), progress.get("topic_id")
        if type(offset) is not int or not isinstance(topic_id, str):
            raise ConfigError(
                "the last commit of this table was not a worker's: it does not say where the input resumes",
                topic=self.topic,
                partition=partition,
                hint="Commit through the worker only, or give the workers a log of their own",
            )
        if topic_id != self.topic_id:
            raise IdentityChanged(
                "the input is another topic than the one that was processed",
                topic=self.topic,
                partition=partition,
                topic_id=self.topic_id,
                processed_topic=str(progress.get("topic")),
                processed_topic_id=topic_id,
                next_offset=offset,
                hint=_RECREATED,
            )
        return offset


def describe_input(kafka: Kafka, topic: str) -> DescribedInput:
    """Describe the input topic. Raises NotFound, Unavailable."""
    found = kafka.describe_topic(topic)
    if found is None:
        raise NotFound(f"there is no topic {topic}", hint="Create the input topic first", topic=topic)
    return DescribedInput(topic=topic, topic_id=found.topic_id, partitions=found.partitions)


def check_identified(found: DescribedInput, waived: Collection[Waiver]) -> None:
    """Raise UnsafeTopic for a topic without an id, unless that is waived: offsets may be of an earlier topic."""
    if found.topic_id == NO_TOPIC_ID and Waiver.TOPIC_IDS not in waived:
        raise UnsafeTopic(
            "the brokers of the input give topics no ids: if it is re-created, nobody can tell",
            topic=found.topic,
            hint=f"Waive it by name: allow_unsafe={Waiver.TOPIC_IDS}; then begin with a new log if it is re-created",
        )


def check_fits(log: Descriptor, found: DescribedInput) -> None:
    """Raise ConfigError unless the log has a partition and a key group for each partition of the input."""
    if (log.hash_rule, log.partitions, log.key_groups) == (HashRule.CALLER, found.partitions, found.partitions):
        return
    raise ConfigError(
        "the log does not fit the input: it needs a key group and a partition for each of the input's partitions",
        log=log.name,
        hash_rule=log.hash_rule.value,
        partitions=log.partitions,
        key_groups=log.key_groups,
        topic=found.topic,
        input_partitions=found.partitions,
        hint="Give the workers a log with a new name, and create=True: a log's partitions and key groups never change",
    )


Hook = Callable[[int, Table[Any, Any]], object]
"""A function of a partition and its table. An error in it is raised by the loop, and ends the worker."""

DueHook = Callable[[Table[Any, Any], Any, Any], object]
"""A function of a table and of the key and the value of a row that is due, as `Table.run_due` calls it."""

Join = Callable[[GroupListener, Callable[[str], None]], GroupMember]
"""Make the group member, with a listener, and a function for its notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHooks:
    """Functions that a worker calls on its own thread, all but `on_due` with a partition and its table. Raises
    ConfigError.

    on_open      before the table's first message
    on_tick      every `tick_s` seconds, with or without messages
    on_due       for each row that is due, oldest first, in place of its delete; called with table, key and value, as
                 `Table.run_due` does
    on_commit    once commits are history, up to the table's `progress`
    on_close     last, whatever ended the table, which takes no commit any more

    Changes that all but the last one make are in the next commit. The loop raises their errors. In a hook, all methods
    of the worker but `stop` raise Misuse.
    """

    on_open: Hook | None = None
    on_tick: Hook | None = None
    on_due: DueHook | None = None
    on_commit: Hook | None = None
    on_close: Hook | None = None
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        for hook in (self.on_open, self.on_tick, self.on_due, self.on_commit, self.on_close):
            if not (hook is None or callable(hook)):
                hint = "Give a function of a partition and its table, or for on_due of a table, a key and a value"
                raise ConfigError(f"a hook of type {type(hook).__name__} cannot be called", hint=hint)
        check_kind("tick_s", self.tick_s, int, float, example="tick_s=10.0")
        if not self.tick_s > 0:
            raise ConfigError(f"tick_s is {self.tick_s} and must be positive", hint="Leave out on_tick for no ticks")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The parts of one worker on the log `name`, whose key groups are the partitions of the topic.

    `open_table`: opens the table of a partition, which fences its former owner; with True, in a directory of its own.
    `release`: closes `kafka`, the cluster of the input, and everything else here.
    """

    name: str
    topic: InputTopic
    key_groups: int
    kafka: Kafka
    open_table: Callable[[int, bool], Table[Any, Any]]
    standbys: StandbyPool
    join: Join
    unsent_max: int
    environment: Environment
    release: Callable[[], None]
    hooks: WorkerHooks

    def input(self) -> DescribedInput:
        """Describe the input topic. Raises NotFound, Unavailable."""
        return describe_input(self.kafka, self.topic.name)
