"""What a worker works with: its input topic, its hooks, and `WorkerContext`, the way to its tables and into its group.

    progress of a table    {"offset": 42, "topic": "words", "topic_id": "..."}
    hooks                  open ─► on_open ─► messages, on_tick ─► commits, each ─► on_commit ─► ... ─► on_close

Invariants:
- An offset counts for the topic that it was taken from, and for no other of the same name.
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

_MADE_ANEW = "Was it made anew? Offsets of the old one say nothing of it: begin with a new log"
_GROWN = (
    "Stop all workers. Keys may be in other partitions now: go on in a new log, which counts the input from its start"
)


class InputStart(StrEnum):
    """Where a table without progress begins to read its partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class InputTopic:
    """The Kafka topic that workers read, and how: `topic=InputTopic("words", start="latest")`. Raises ConfigError.

    consumer       librdkafka's settings of the group's member: `group.id` (by default the log's name), timeouts, and
                   `bootstrap.servers` with what belongs to them if the topic is in another cluster than the log. The
                   assignor is cooperative-sticky unless it says otherwise: with another one, each change in the group
                   closes every table
    start          where a table without any commit begins: "earliest", or "latest"
    accept_loss    go on with what is there where the topic has lost messages that no table has processed; else an error
    """

    name: str
    consumer: Mapping[str, str] = field(default_factory=dict[str, str])
    start: InputStart | str = InputStart.EARLIEST
    accept_loss: bool = False

    def __post_init__(self) -> None:
        check_kind("the input topic", self.name, str, example='InputTopic("words"), one topic for each worker')
        check_kind("consumer", self.consumer, Mapping, example='consumer={"group.id": "counts"}')
        object.__setattr__(self, "consumer", dict(self.consumer))
        check_kind("accept_loss", self.accept_loss, bool, example="True, and what is lost is passed over, or False")
        object.__setattr__(self, "start", parse_enum(InputStart, "start", self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedInput:
    """The input topic, as the cluster describes it now."""

    topic: str
    topic_id: str
    partitions: int

    def progress(self, next_offset: int) -> Metadata:
        """What a commit says of the input, once everything below that offset is processed."""
        return {"offset": next_offset, "topic": self.topic, "topic_id": self.topic_id}

    def check_is(self, now: "DescribedInput") -> None:
        """Raise IdentityChanged unless it still is the topic that was described then: offsets are those of one;
        ConfigError if it has grown: what was read since may be of keys whose state is elsewhere.
        """
        if now.topic_id != self.topic_id:
            raise IdentityChanged(
                "the input was made anew while it was read",
                topic=self.topic,
                topic_id=now.topic_id,
                read_topic_id=self.topic_id,
                hint=_MADE_ANEW,
            )
        now.check_covered(self.partitions)

    def check_covered(self, key_groups: int) -> None:
        """Raise ConfigError if it has more partitions than its log has key groups."""
        if self.partitions > key_groups:
            raise ConfigError(
                "the input has more partitions than its log has key groups: it has grown",
                topic=self.topic,
                partitions=self.partitions,
                key_groups=key_groups,
                hint=_GROWN,
            )

    def start_offset(self, progress: Metadata | None, partition: int, available: OffsetRange, topic: InputTopic) -> int:
        """Where to read a partition on, of which these offsets are there; `progress` is None before the first commit.

        Raises ConfigError, IdentityChanged; OffsetGone or BeyondEnd unless the loss is accepted.
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
            f"the input {what} what was processed: records were lost",
            topic=self.topic,
            partition=partition,
            next_offset=offset,
            log_start=available.start,
            log_end=available.end,
            hint="Find out what was lost; InputTopic(..., accept_loss=True) goes on with what is there",
        )

    def own_offset(self, progress: Metadata, partition: int) -> int:
        """The offset in a progress of this topic. Raises ConfigError, IdentityChanged."""
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
                hint=_MADE_ANEW,
            )
        return offset


def describe_input(kafka: Kafka, topic: str) -> DescribedInput:
    """The input topic, as it is now. Raises NotFound, Unavailable."""
    found = kafka.describe_topic(topic)
    if found is None:
        raise NotFound(f"there is no topic {topic}", hint="Make the input topic first", topic=topic)
    return DescribedInput(topic=topic, topic_id=found.topic_id, partitions=found.partitions)


def check_identified(found: DescribedInput, waived: Collection[Waiver]) -> None:
    """Raise UnsafeTopic for a topic without an id, unless that is waived: its offsets may be those of one before it."""
    if found.topic_id == NO_TOPIC_ID and Waiver.TOPIC_IDS not in waived:
        raise UnsafeTopic(
            "the brokers of the input give topics no ids: if it is made anew, nobody can tell",
            topic=found.topic,
            hint=f"Waive it by name: allow_unsafe={Waiver.TOPIC_IDS}; then begin with a new log if it is made anew",
        )


def check_fits(log: Descriptor, found: DescribedInput) -> None:
    """Raise ConfigError unless the log has a partition and a key group for each partition of the input."""
    if (log.hash_rule, log.partitions, log.key_groups) == (HashRule.CALLER, found.partitions, found.partitions):
        return
    raise ConfigError(
        "the log does not fit the input: it takes a key group and a partition for each of the input's partitions",
        log=log.name,
        hash_rule=log.hash_rule.value,
        partitions=log.partitions,
        key_groups=log.key_groups,
        topic=found.topic,
        input_partitions=found.partitions,
        hint="Give the workers a log with a new name, and create=True: its counts of partitions and key groups never "
        "change",
    )


Hook = Callable[[int, Table[Any, Any]], object]
"""Takes a partition and its table. What it raises comes out of the loop, and ends the worker."""

Join = Callable[[GroupListener, Callable[[str], None]], GroupMember]
"""Makes the group member, from who listens to it and where its notes go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHooks:
    """What a worker calls, in its own thread, with a partition and its table. Raises ConfigError.

    on_open      before the table's first message
    on_tick      every `tick_s` seconds, whether messages come or not
    on_commit    once commits are history, up to the table's `progress`
    on_close     last, whatever ended the table, which takes no commit any more

    What the others change is in the next commit. What they raise comes out of the loop. A worker's method but `stop` is
    Misuse inside of them.
    """

    on_open: Hook | None = None
    on_tick: Hook | None = None
    on_commit: Hook | None = None
    on_close: Hook | None = None
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        for hook in (self.on_open, self.on_tick, self.on_commit, self.on_close):
            if not (hook is None or callable(hook)):
                hint = "Give a function of a partition and its table"
                raise ConfigError(f"a hook is of type {type(hook).__name__}, and cannot be called", hint=hint)
        check_kind("tick_s", self.tick_s, int, float, example="tick_s=10.0")
        if not self.tick_s > 0:
            raise ConfigError(f"tick_s is {self.tick_s} and must be positive", hint="Leave out on_tick for no ticks")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Of one worker, on the log `name`, whose key groups are the partitions of the topic.

    `open_table` opens the table of a partition, which fences its former owner; if it is told so, beside a directory
    that is in use. `release` closes `kafka`, the cluster of the input, and what else is here.
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
        """The input topic, as it is now. Raises NotFound, Unavailable."""
        return describe_input(self.kafka, self.topic.name)
