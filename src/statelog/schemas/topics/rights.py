"""Rights: the operations on both topics that each role needs, and the check for missing ones. Pure.

`docs/security.md` has the same sets, and the rights that Kafka asks for besides: DESCRIBE_CONFIGS on both topics, and
DESCRIBE on the readers' group. Names are Kafka's own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from statelog.errors import ConfigError

__all__ = ["LEDGER_WRITING", "NO_RIGHTS", "READING", "ROLLING_UP", "WRITING", "Rights", "check_rights"]


class Rights(NamedTuple):
    """Operations on the data topic and on the ledger topic."""

    data: frozenset[str]
    ledger: frozenset[str]


NO_RIGHTS = Rights(frozenset(), frozenset())
READING = Rights(frozenset({"READ"}), frozenset({"READ"}))
LEDGER_WRITING = Rights(READING.data, frozenset({"READ", "WRITE"}))
"""For a reader that appends to the ledger alone: a barrier, the acceptance of a loss."""
WRITING = Rights(frozenset({"READ", "WRITE"}), frozenset({"READ", "WRITE"}))
ROLLING_UP = Rights(frozenset({"READ", "DELETE"}), frozenset({"READ", "DELETE"}))


def check_rights(needed: Mapping[str, frozenset[str]], held: Mapping[str, frozenset[str] | None]) -> None:
    """Raise ConfigError for the first right that is missing; both are operations by topic.

    None says that the cluster does not tell, as old brokers do not: then the operation itself will.
    """
    for topic, operations in needed.items():
        known = held[topic]
        missing = sorted(operations - known) if known is not None else []
        if missing:
            raise ConfigError(
                f"Kafka does not allow this client {' and '.join(missing)} on topic {topic}",
                hint="Grant its principal what docs/security.md lists for the role",
                topic=topic,
                missing=", ".join(missing),
            )
