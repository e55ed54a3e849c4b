"""`Share`: what of a log a table owns: partitions for its writer, key groups for its keys; and the owner's name. Pure.

Invariant: what is owned can be owned apart: whole partitions, and so all of their key groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from statelog.errors import ConfigError
from statelog.recovery.rocksdb_state import require_rocksdict
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import key_groups_of_partition, partition_of
from statelog.schemas.names import check_name
from statelog.tables.state.store import BackendKind

__all__ = ["Share", "check_directory", "share_of"]

_NAME = "table"


@dataclass(frozen=True, slots=True)
class Share:
    """Partitions and key groups, None for all; `one` is the key group of a table of one that its callers name."""

    partitions: tuple[int, ...] | None
    key_groups: frozenset[int] | None
    one: int | None = None

    def owner(self, writer: str | None) -> str:
        """The owner's name: the one that was given, or that which follows from the share. Raises ConfigError."""
        name = writer or self._default_owner()
        check_name("writer", name)
        return name

    def _default_owner(self) -> str:
        if self.partitions is None:
            return _NAME
        if len(self.partitions) == 1:
            return f"{_NAME}-{self.partitions[0]}"
        raise ConfigError("a table on several partitions needs a name", hint="Give writer=..., the same in every life")


def share_of(log: Descriptor, own_partitions: Sequence[int] | None, own_key_group: int | None) -> Share:
    """What is owned. Raises ConfigError for what the log does not have, or cannot be owned apart."""
    if own_key_group is not None:
        if own_partitions is not None or log.hash_rule is not HashRule.CALLER:
            raise ConfigError(
                "a key group is owned by itself in a log whose callers name it",
                hint='Make the log with hash_rule="caller", or give own_partitions alone',
            )
        return Share((_own_partition(log, own_key_group),), frozenset([own_key_group]), own_key_group)
    if own_partitions is None:
        return Share(None, None)
    taken = tuple(sorted(set(own_partitions)))
    groups = (group for one in taken for group in key_groups_of_partition(one, log.partitions, log.key_groups))
    return Share(taken, frozenset(groups))


def _own_partition(log: Descriptor, key_group: int) -> int:
    if not 0 <= key_group < log.key_groups:
        raise ConfigError("the log has no such key group", own_key_group=key_group, key_groups=log.key_groups)
    partition = partition_of(key_group, log.partitions, log.key_groups)
    if len(key_groups_of_partition(partition, log.partitions, log.key_groups)) > 1:
        raise ConfigError(
            "the partition of this key group holds others, whose owners would be fenced",
            own_key_group=key_group,
            partition=partition,
            hint="Make the log with as many partitions as key groups",
        )
    return partition


def check_directory(kind: BackendKind, directory: str | PathLike[str] | None) -> None:
    """Raise ConfigError unless this backend goes with this directory, or with none."""
    if kind is BackendKind.ROCKSDB:
        require_rocksdict()
        if directory is None:
            raise ConfigError("a table in RocksDB needs a directory", hint="Give directory=..., on a local disk")
    elif directory is not None:
        raise ConfigError("a table in a dict has no directory", hint='Leave it out, or give backend="rocksdb"')
