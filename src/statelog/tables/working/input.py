"""The input topic of a group of workers, what a table's progress says of it, and where to read on. Pure.

    progress of a table    {"offset": 42, "topic": "words", "topic_id": "..."}

Invariants:
- An offset counts for the topic that it was taken from, and for no other of the same name.
- Where records were lost that no table has processed, it is an error, unless it was allowed by name.
"""

from dataclasses import dataclass
from enum import StrEnum

from statelog.errors import BeyondEnd, ConfigError, IdentityChanged, OffsetGone
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.ledger.place import Metadata
from statelog.storage.kafka import OffsetRange

__all__ = ["Input", "InputStart", "check_fits"]

_MADE_ANEW = "Was it made anew? Offsets of the old one say nothing of it: begin with a new log"
_GROWN = (
    "Stop all workers. Keys may be in other partitions now: go on in a new log, which counts the input from its start"
)


class InputStart(StrEnum):
    """Where a table without progress begins to read its partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input topic, as the cluster describes it now."""

    topic: str
    topic_id: str
    partitions: int

    def progress(self, next_offset: int) -> Metadata:
        """What a commit says of the input, once everything below that offset is processed."""
        return {"offset": next_offset, "topic": self.topic, "topic_id": self.topic_id}

    def check_is(self, now: "Input") -> None:
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

    def start_offset(
        self,
        progress: Metadata | None,
        partition: int,
        available: OffsetRange,
        start: InputStart,
        *,
        accepts_loss: bool,
    ) -> int:
        """Where to read a partition on, of which these offsets are there; `progress` is None before the first commit.

        Raises ConfigError, IdentityChanged; OffsetGone or BeyondEnd unless the loss is accepted.
        """
        if progress is None:
            return available.start if start is InputStart.EARLIEST else available.end
        offset = self._own_offset(progress, partition)
        if offset in range(available.start, available.end + 1):
            return offset
        is_gone = offset < available.start
        if accepts_loss:
            return available.start if is_gone else available.end
        kind, what = (OffsetGone, "starts above") if is_gone else (BeyondEnd, "ends below")
        raise kind(
            f"the input {what} what was processed: records were lost",
            topic=self.topic,
            partition=partition,
            next_offset=offset,
            log_start=available.start,
            log_end=available.end,
            hint="Find out what was lost; accept_input_loss=True goes on with what is there",
        )

    def _own_offset(self, progress: Metadata, partition: int) -> int:
        """The offset in a progress of this topic."""
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


def check_fits(log: Descriptor, found: Input) -> None:
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
