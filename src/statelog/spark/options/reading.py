"""Options that all reads of rows share: of a state, of changes in a batch, and of a stream of them. Pure.

One rule each, whatever is read: how an option is written, what is refused, and what it means to ask for no lease.
"""

from collections.abc import Mapping
from typing import TypedDict

from statelog.errors import ConfigError
from statelog.reading.hold import Terms
from statelog.spark.options.address import LogAddress, log_address
from statelog.spark.options.parsing import COMMON, listed, number, numbers

__all__ = ["READING", "Reading", "lease_terms", "positive", "reading_options"]

READING = (*COMMON, "read", "keyGroups", "minPartitions", "columns", "leaseSeconds")
"""The names of these options."""


class Reading(TypedDict):
    """What these options say, by the names of a read's fields. None for all key groups or columns, or any number."""

    where: LogAddress
    key_groups: tuple[int, ...] | None
    min_partitions: int | None
    columns: tuple[str, ...] | None
    lease_s: int


def reading_options(given: Mapping[str, str], *, lease_s: int) -> Reading:
    """The options, by lower-cased names; `lease_s` holds where none is given. Raises ConfigError that names one."""
    wanted_s = number(given, "leaseSeconds")
    return Reading(
        where=log_address(given),
        key_groups=numbers(given, "keyGroups"),
        min_partitions=positive(given, "minPartitions"),
        columns=_columns(given),
        lease_s=lease_s if wanted_s is None else wanted_s,
    )


def lease_terms(lease_s: int, holder: str) -> Terms:
    """What `leaseSeconds` comes to: 0 is for no lease, and a time to live is never 0."""
    return Terms(holder, max(1, lease_s), wanted=lease_s > 0)


def positive(given: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0; None if it is not given. Raises ConfigError."""
    found = number(given, name)
    if found == 0:
        raise ConfigError(f"the option {name} is 0", hint="Leave it out, or give at least 1")
    return found


def _columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    columns = listed(given.get("columns", ""))
    if "columns" in given and not columns:
        raise ConfigError("the option columns is empty", hint="Leave it out for all columns")
    return columns or None
