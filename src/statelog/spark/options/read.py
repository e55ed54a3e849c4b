"""Options of a read: which part of which state. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.recovery.planning.at import At, AtCheckpoint, AtPosition
from statelog.spark.options.address import LogAddress, log_address
from statelog.spark.options.parsing import COMMON, flag, listed, lowered, number, numbers, refuse_unknown

__all__ = ["ReadOptions", "read_options"]

_READ = ("keyGroups", "atPosition", "atWriter", "atCheckpoint", "minPartitions", "columns", "includeKeyGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A batch read: which part of which state. None means all key groups, the newest state, all columns."""

    where: LogAddress
    key_groups: tuple[int, ...] | None = None
    at: At | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    include_key_group: bool = False


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read. Raises ConfigError that names the option."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, *_READ), "read")
    columns = listed(given.get("columns", ""))
    if "columns" in given and not columns:
        raise ConfigError("the option columns is empty", hint="Leave it out for all columns")
    minimum = number(given, "minPartitions")
    if minimum == 0:
        raise ConfigError("the option minPartitions is 0", hint="Leave it out, or give at least 1")
    return ReadOptions(
        where=log_address(given),
        key_groups=numbers(given, "keyGroups"),
        at=_at(given),
        min_partitions=minimum,
        columns=columns or None,
        include_key_group=flag(given, "includeKeyGroup"),
    )


def _at(given: Mapping[str, str]) -> At | None:
    position, checkpoint = number(given, "atPosition"), number(given, "atCheckpoint")
    writer = given.get("atwriter")
    if (writer is None) != (checkpoint is None) or (position is not None and writer is not None):
        raise ConfigError(
            "the options that choose the state contradict each other",
            hint="Give atPosition, or atWriter together with atCheckpoint, or none of them",
        )
    if writer is not None and checkpoint is not None:
        return AtCheckpoint(writer, checkpoint)
    return None if position is None else AtPosition(position)
