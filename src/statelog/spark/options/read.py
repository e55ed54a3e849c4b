"""Options of a read: of a state, of committed changes, or of a view of the log itself. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.reading.plan import At, AtCheckpoint, AtPosition, Bound
from statelog.spark.options.address import LogAddress, log_address
from statelog.spark.options.bounds import BOUNDS, bound
from statelog.spark.options.parsing import COMMON, flag, key_texts, lowered, number, refuse_unknown
from statelog.spark.options.reading import READING, reading_options

__all__ = ["LEASE_S", "ChangeOptions", "ReadOptions", "change_options", "read_of", "read_options", "view_options"]

LEASE_S = 300
"""How long a planned read is held, by default, for tasks that have not started."""
_STATE = (*READING, "atPosition", "atWriter", "atCheckpoint", "keys", "includeKeyGroup")
_CHANGES = (*READING, *BOUNDS)
_CATALOG = ("provider", "owner", "option.log")  # What Spark hands over of a table in its catalog, instead of OPTIONS.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read of a state: which part of which. None means all keys and key groups, the newest state, all columns.

    `keys` are texts, which the log's key type reads. `lease_s` is how long each scan holds what it reads, 0 for not.
    """

    where: LogAddress
    key_groups: tuple[int, ...] | None = None
    keys: tuple[str, ...] | None = None
    at: At | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    include_key_group: bool = False
    lease_s: int = LEASE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """A read of changes: those of the commits behind `start` and up to `end`; None for all that the log holds."""

    where: LogAddress
    start: Bound | None = None
    end: Bound | None = None
    key_groups: tuple[int, ...] | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    lease_s: int = LEASE_S


def read_of(options: Mapping[str, str]) -> str:
    """What is read, by the option `read`: `state` without it. Raises ConfigError for a table of Spark's catalog."""
    given = lowered(options)
    if any(name in given for name in _CATALOG):
        raise ConfigError(
            "a table of Spark's catalog cannot be a log: Spark gives the table's OPTIONS to no Python source",
            hint="Use CREATE TEMPORARY VIEW ... USING statelog OPTIONS (...), or spark.read.format('statelog')",
        )
    return given.get("read", "state").lower()


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read of a state. Raises ConfigError that names the option."""
    given = lowered(options)
    refuse_unknown(given, _STATE, "read of a state")
    return ReadOptions(
        **reading_options(given, lease_s=LEASE_S),
        keys=key_texts(given["keys"]) if "keys" in given else None,
        at=_at(given),
        include_key_group=flag(given, "includeKeyGroup"),
    )


def change_options(options: Mapping[str, str]) -> ChangeOptions:
    """The options of a read of changes. Raises ConfigError that names the option."""
    given = lowered(options)
    refuse_unknown(given, _CHANGES, "read of changes")
    return ChangeOptions(
        **reading_options(given, lease_s=LEASE_S),
        start=bound(given, "starting", open_word="earliest"),
        end=bound(given, "ending", open_word="latest"),
    )


def view_options(options: Mapping[str, str]) -> LogAddress:
    """The options of a view: where the log is, and nothing else. Raises ConfigError that names the option."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, "read"), f"read of {given.get('read')}")
    return log_address(given)


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
