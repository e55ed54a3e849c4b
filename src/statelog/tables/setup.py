"""`TableSetup`: the log, partitions and directory of a table or a standby, and `TableSettings`.

Invariant: a table owns whole partitions, with all of their key groups, because a partition has only one owner.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from os import PathLike
from typing import Literal

from statelog.closing import Closing, undone_by_errors
from statelog.environment import Environment, current_environment
from statelog.errors import ConfigError
from statelog.log import Log, LogOptions, Where
from statelog.log import open as open_log
from statelog.producer import Writer, WriterSettings
from statelog.producer.epoch import open_epoch, owned_partitions
from statelog.producer.writer import OpenedWriter
from statelog.recovery import RecoverySettings
from statelog.recovery.rocksdb_state import require_rocksdict
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import key_groups_of_partition, partition_of
from statelog.schemas.names import check_kind, check_name, parse_enum, whole_numbers
from statelog.store.disk.disk import local_path
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule

_NAME = "table"
_OUTPUTS = ("exactly-once", "at-least-once")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTuning:
    """Settings that only the tests and benchmarks of this package change. Not checked.

    `commits_under_way_max`: above it `commit_async` and `commit_every` wait for the oldest.
    `recent_bytes`: of RocksDB, what was committed last, kept as objects to be read back; 0 keeps none.
    """

    commits_under_way_max: int = 4
    recent_bytes: int = 64 << 20


class BackendKind(StrEnum):
    """The backends of a table."""

    DICT = "dict"
    ROCKSDB = "rocksdb"


class Loading(StrEnum):
    """When the state that a snapshot has becomes local: before the table opens, in the background, or never."""

    FIRST = "first"
    BEHIND = "behind"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table commits, and how much memory it takes. Raises ConfigError.

        settings = TableSettings(cache_bytes=256 << 20)
        table = statelog.table("orders", where, backend="rocksdb", directory="/var/lib/job", settings=settings)

    every_change           log every change, for readers of the history (`read_changes`); by default only the last one
                           of each key in a commit is logged
    skip_equal             leave out changes that change nothing: a put of the present value, a delete of no key
    uncommitted_bytes_max  `commit_every` commits early once so many bytes were put, or a key for each KiB of them
                           has changed; changes of bytes below 4 KiB count only as keys
    cache_bytes            RocksDB's cache of blocks, indexes and filters. Half as much again caches decoded snapshot
                           data that is read on demand, with either backend. A range holds 8 KiB or more of each
                           key group in each run besides
    write_buffer_bytes     RocksDB's changes in memory before they become a file; twice as much while one is written
    loading                "first": all of the state is local before the table opens. "behind": the table opens once
                           the commits since the newest snapshot are read; the rest is loaded in the background.
                           "on-demand": the rest stays in the snapshot, and is read from there. Refused where rows
                           expire: they could not be found to be deleted
    outputs                "exactly-once": sent messages are published in Kafka transactions. "at-least-once": without
                           them, for a Kafka that has none; the header `statelog` of each message shows repeats
    outputs_patience_s     how long publishing is tried again if a topic or the cluster refuses; then the table ends
    writer                 how changes are batched and sent
    recovery               how the state is recovered, and the name of its lease
    """

    every_change: bool = False
    skip_equal: bool = False
    uncommitted_bytes_max: int = 1 << 30
    cache_bytes: int = 128 << 20
    write_buffer_bytes: int = 32 << 20
    loading: Loading | str = Loading.FIRST
    outputs: Literal["exactly-once", "at-least-once"] = "exactly-once"
    outputs_patience_s: float = 60.0
    writer: WriterSettings = field(default_factory=WriterSettings)
    recovery: RecoverySettings = field(default_factory=lambda: RecoverySettings(holder="table"))
    _tuning: TableTuning = field(default_factory=TableTuning, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loading", parse_enum(Loading, "loading", self.loading))
        if self.outputs not in _OUTPUTS:
            raise ConfigError(f"outputs is {self.outputs!r}", hint=f"Choose from {', '.join(_OUTPUTS)}")
        check_kind("outputs_patience_s", self.outputs_patience_s, int, float, example="a number of seconds")
        if not 0 <= self.outputs_patience_s < math.inf:
            raise ConfigError(f"outputs_patience_s is {self.outputs_patience_s} and must be finite, and not negative")
        for name in (one.name for one in fields(self) if one.type is bool):
            check_kind(name, getattr(self, name), bool, example="True or False")
        check_kind("writer", self.writer, WriterSettings, example="WriterSettings(...)")
        check_kind("recovery", self.recovery, RecoverySettings, example="RecoverySettings(...)")
        for name in (one.name for one in fields(self) if one.type is int):
            (value,) = whole_numbers(name, [getattr(self, name)], example=f"{name}=1000")
            if value < 1:
                raise ConfigError(f"{name} is {value} and must be positive")

    @property
    def uncommitted_changes_max(self) -> int:
        """How many keys may have changed before `commit_every` commits: one for each KiB of `uncommitted_bytes_max`."""
        return max(1, self.uncommitted_bytes_max >> 10)


def tuning_of(settings: TableSettings) -> TableTuning:
    """Return the tuning of these settings: the defaults, except in tests."""
    return settings._tuning  # pyright: ignore[reportPrivateUsage] # private to programs, not to this package


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetup(Closing):
    """A log, the owned part of it, and where and how its state is stored. Close it to close log and directory."""

    log: Log
    partitions: tuple[int, ...] | None
    owner: str
    keys: KeyRule
    directory: StateDirectory | None
    settings: TableSettings
    environment: Environment

    @classmethod
    def open(
        cls,
        name: str,
        where: Where,
        *,
        create: bool | LogOptions = False,
        backend: BackendKind | str,
        directory: str | PathLike[str] | None,
        writer: str | None,
        partitions: Sequence[int] | None,
        key_group: int | None,
        settings: TableSettings,
    ) -> "TableSetup":
        """Open the log, and lock the directory, if any.

        Raises NotFound, ConfigError, LogInUse, Damaged, Unavailable.
        """
        _check_directory(backend, directory)
        log = open_log(name, where, create=create)
        with undone_by_errors(log.close):
            if log.descriptor.ttl_s is not None and settings.loading is Loading.ON_DEMAND:
                text = "rows of this log expire, and a table that loads on demand never has all of them to delete"
                raise ConfigError(text, log=log.name, ttl_s=log.descriptor.ttl_s, hint='Use loading="behind"')
            taken, keys = _owned(log.descriptor, partitions, key_group)
            owner = writer or _default_owner(taken)
            check_name("writer", owner)
            return cls(
                log=log,
                partitions=taken,
                owner=owner,
                keys=keys,
                directory=None if directory is None else StateDirectory(directory, log.name, owner),
                settings=settings,
                environment=current_environment(),
            )

    def writer(self) -> Writer:
        """Open the owner. Raises Fenced, OutcomeUnknown, Damaged, Unavailable, ConfigError."""
        run = self.environment.run
        opened = run(open_epoch, self.log, self.owner, partitions=self.partitions)
        return run(OpenedWriter, self.log, opened, self.settings.writer)

    def close(self) -> None:
        """Close log and directory. Idempotent."""
        try:
            if self.directory is not None:
                self.directory.close()
        finally:
            self.log.close()


def _owned(
    log: Descriptor, partitions: Sequence[int] | None, key_group: int | None
) -> tuple[tuple[int, ...] | None, KeyRule]:
    """Return the owned partitions (None: all), and the rule of their keys.

    Raises ConfigError for partitions or key groups that the log does not have, or that cannot be owned separately.
    """
    if key_group is not None:
        if partitions is not None or log.hash_rule is not HashRule.CALLER:
            hint = 'Make the log with hash_rule="caller", or give partitions alone'
            raise ConfigError("key_group needs a log whose callers name the key group, and no partitions", hint=hint)
        (key_group,) = whole_numbers("key_group", [key_group], example="key_group=3")
        return (_partition_alone(log, key_group),), KeyRule(log, frozenset([key_group]), key_group)
    if partitions is None:
        return None, KeyRule(log, None)
    taken = owned_partitions(log, partitions)
    groups = (group for one in taken for group in key_groups_of_partition(one, log.partitions, log.key_groups))
    return taken, KeyRule(log, frozenset(groups))


def _default_owner(partitions: Sequence[int] | None) -> str:
    if partitions is None:
        return _NAME
    if len(partitions) == 1:
        return f"{_NAME}-{partitions[0]}"
    raise ConfigError("a table on several partitions needs a name", hint="Give writer=..., the same at every start")


def _partition_alone(log: Descriptor, key_group: int) -> int:
    if not 0 <= key_group < log.key_groups:
        raise ConfigError("the log has no such key group", key_group=key_group, key_groups=log.key_groups)
    partition = partition_of(key_group, log.partitions, log.key_groups)
    if len(key_groups_of_partition(partition, log.partitions, log.key_groups)) > 1:
        raise ConfigError(
            "the partition of this key group has others, whose owners would be fenced",
            key_group=key_group,
            partition=partition,
            hint="Make the log with as many partitions as key groups",
        )
    return partition


def _check_directory(backend: BackendKind | str, directory: str | PathLike[str] | None) -> None:
    """Raise ConfigError if the backend needs a directory and has none, or has one that it does not need."""
    if parse_enum(BackendKind, "backend", backend) is BackendKind.ROCKSDB:
        require_rocksdict()
        if directory is None:
            raise ConfigError("a table in RocksDB needs a directory", hint="Give directory=..., on a local disk")
        local_path(directory)
    elif directory is not None:
        raise ConfigError("a table in a dict has no directory", hint='Leave it out, or give backend="rocksdb"')
