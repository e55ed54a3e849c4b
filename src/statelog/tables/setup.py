"""`TableSetup`: what a table and its standbys are opened with: a log, the part that is owned, where its state lies.

Invariant: what is owned can be owned apart: whole partitions, and so all of their key groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from statelog.closing import Closing, undone_by_errors
from statelog.environment import Environment, current_environment
from statelog.errors import ConfigError
from statelog.producer import Writer
from statelog.producer.epoch import open_epoch
from statelog.producer.writer import OpenedWriter
from statelog.reading.plan import Folding
from statelog.recovery.rocksdb_state import require_rocksdict
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import key_groups_of_partition, partition_of
from statelog.schemas.names import check_name, parse_enum
from statelog.storage import Log, LogOptions, Where
from statelog.storage import open as open_log
from statelog.storage.ledger_client import LedgerBase
from statelog.tables.settings import BackendKind, TableSettings
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.keys import KeyRule

_NAME = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetup(Closing):
    """A log, the part of it that is owned, and where and how its state is kept. Close it to close log and directory."""

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
        """Open the log, and lock the directory, if there is one.

        Raises NotFound, ConfigError, LogInUse, Damaged, Unavailable.
        """
        _check_directory(backend, directory)
        log = open_log(name, where, create=create)
        with undone_by_errors(log.close):
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

    def writer(self, base: LedgerBase | None = None) -> tuple[Writer, Folding | None]:
        """The owner's Open, and what it folded; nothing if it began at `base`.

        Raises Fenced, OutcomeUnknown, Damaged, Unavailable, ConfigError.
        """
        run, keeps = self.environment.run, base is None
        opened = run(open_epoch, self.log, self.owner, partitions=self.partitions, base=base, keeps_folding=keeps)
        folding, opened.folding = opened.folding, None  # For the opening of the state only: there may be many commits.
        return run(OpenedWriter, self.log, opened, self.settings.writer), folding

    def close(self) -> None:
        """Release both. Idempotent."""
        try:
            if self.directory is not None:
                self.directory.close()
        finally:
            self.log.close()


def _owned(
    log: Descriptor, partitions: Sequence[int] | None, key_group: int | None
) -> tuple[tuple[int, ...] | None, KeyRule]:
    """These partitions (None: all), or that of the key group, and whose keys are owned. Raises ConfigError for what the
    log does not have, or what cannot be owned apart.
    """
    if key_group is not None:
        if partitions is not None or log.hash_rule is not HashRule.CALLER:
            raise ConfigError(
                "a key group is owned by itself in a log whose callers name it",
                hint='Make the log with hash_rule="caller", or give partitions alone',
            )
        return (_partition_alone(log, key_group),), KeyRule(log, frozenset([key_group]), key_group)
    if partitions is None:
        return None, KeyRule(log, None)
    taken = tuple(sorted(set(partitions)))
    groups = (group for one in taken for group in key_groups_of_partition(one, log.partitions, log.key_groups))
    return taken, KeyRule(log, frozenset(groups))


def _default_owner(partitions: Sequence[int] | None) -> str:
    if partitions is None:
        return _NAME
    if len(partitions) == 1:
        return f"{_NAME}-{partitions[0]}"
    raise ConfigError("a table on several partitions needs a name", hint="Give writer=..., the same in every life")


def _partition_alone(log: Descriptor, key_group: int) -> int:
    if not 0 <= key_group < log.key_groups:
        raise ConfigError("the log has no such key group", key_group=key_group, key_groups=log.key_groups)
    partition = partition_of(key_group, log.partitions, log.key_groups)
    if len(key_groups_of_partition(partition, log.partitions, log.key_groups)) > 1:
        raise ConfigError(
            "the partition of this key group holds others, whose owners would be fenced",
            key_group=key_group,
            partition=partition,
            hint="Make the log with as many partitions as key groups",
        )
    return partition


def _check_directory(backend: BackendKind | str, directory: str | PathLike[str] | None) -> None:
    """Raise ConfigError unless this backend goes with this directory, or with none."""
    if parse_enum(BackendKind, "backend", backend) is BackendKind.ROCKSDB:
        require_rocksdict()
        if directory is None:
            raise ConfigError("a table in RocksDB needs a directory", hint="Give directory=..., on a local disk")
    elif directory is not None:
        raise ConfigError("a table in a dict has no directory", hint='Leave it out, or give backend="rocksdb"')
