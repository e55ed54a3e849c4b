"""`table`: opens keyed state that survives, and makes its log first if asked to.

    1  open the log                       storage
    2  lock the local directory, if any   backends/home.py
    3  the owner's Open                   producer: fences the former owner, so what is committed is final
    4  the state at or above that Open    the backend

Invariant: whatever fails on the way, nothing stays open.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from statelog.errors import ConfigError
from statelog.producer import Writer
from statelog.recovery import Host, recover
from statelog.recovery.targets.rocksdb_read import require_rocksdict
from statelog.schemas.choices import one_of
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.keys.key_groups import KeyType, key_groups_of_partition, partition_of
from statelog.schemas.names import check_name
from statelog.storage import KafkaSource, Log, StoreSource
from statelog.storage import open as open_log
from statelog.tables.backends.backend import Backend, BackendKind
from statelog.tables.backends.home import Home
from statelog.tables.backends.memory import MemoryBackend
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opening.opened import Opened, Opening
from statelog.tables.settings import TableSettings
from statelog.tables.table import Table

__all__ = ["table"]

_NAME = "table"


@dataclass(frozen=True, slots=True)
class _Share:
    """What of a log a table owns: partitions for its writer, key groups for its keys; None for all."""

    partitions: tuple[int, ...] | None
    key_groups: frozenset[int] | None
    one: int | None = None


def table(
    name: str,
    *,
    kafka: KafkaSource,
    root: StoreSource,
    create: bool = False,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    writer: str | None = None,
    own_partitions: Sequence[int] | None = None,
    own_key_group: int | None = None,
    settings: TableSettings | None = None,
    partitions: int | None = None,
    key_groups: int | None = None,
    key_type: KeyType | str | None = None,
    hash_rule: HashRule | str | None = None,
    value_schema: str | None = None,
    replication_factor: int | None = None,
    allow_unsafe: Collection[str] = (),
    storage_options: Mapping[str, object] | None = None,
    host: Host | None = None,
) -> Table[Any, Any]:
    """Open keyed state that survives: a mapping that is back after a kill, exactly, and its last commit's progress.

        with statelog.table("counts", create=True, **where) as counts:
            counts[b"alice"] = b"1"
            counts.commit({"offset": 42})

    Opening fences the former owner, and recovers the state at or above that fence. The log's options are those of
    `statelog.open`. `backend` is "dict", or "rocksdb" for state larger than memory: then `directory` is where it is
    kept between lives, so that a restart reads only what was committed since.

    `own_partitions` limits the table to a share of the log's partitions, `own_key_group` to one key group, in a log
    whose callers name them (`hash_rule="caller"`) and whose partitions hold one each: an input's partition, say.
    `writer` names the owner; by default "table", and for a single partition with its number behind. `host` is for
    simulations.

    Raises NotFound without `create`, ConfigError, LogInUse if another table has the directory open, Fenced, Damaged,
    Unavailable, StorageFull.
    """
    _check_directory(one_of(BackendKind, "backend", backend), directory)
    chosen, machine = settings or TableSettings(), host or Host()
    with ExitStack() as opened:
        log = open_log(
            name,
            kafka=kafka,
            root=root,
            create=create,
            partitions=partitions,
            key_groups=key_groups,
            key_type=key_type,
            hash_rule=hash_rule,
            value_schema=value_schema,
            replication_factor=replication_factor,
            allow_unsafe=allow_unsafe,
            storage_options=storage_options,
        )
        opened.callback(log.close)
        share = _share(log.descriptor, own_partitions, own_key_group)
        made = _open(opened, log, directory, writer, share, chosen, machine)
        opened.pop_all()
        return Table(made)


def _open(
    stack: ExitStack,
    log: Log,
    directory: str | PathLike[str] | None,
    writer_name: str | None,
    share: _Share,
    settings: TableSettings,
    host: Host,
) -> Opened:
    owner = writer_name or _default_writer(share)
    check_name("writer", owner)
    home = None if directory is None else Home(Path(directory), log.name, owner)
    if home is not None:
        stack.callback(home.close)
    writer = Writer(log, owner, partitions=share.partitions, settings=settings.writer, seams=host)
    stack.push(writer)
    keys = KeyRule(log.descriptor, share.key_groups, share.one)
    values = ValueRule(writer.grant.value_schema)
    found: Backend
    if home is None:
        found, opening = _recovered(log, writer, keys, values, settings, host)
    else:
        from statelog.tables.opening.local import LocalOpening

        found, opening = LocalOpening(log, writer, home, keys, values, settings, host).open()
    host.crash("table-open")
    return Opened(
        log=log,
        writer=writer,
        keys=keys,
        values=values,
        backend=found,
        home=home,
        opening=opening,
        settings=settings,
        seams=host,
    )


def _recovered(
    log: Log, writer: Writer, keys: KeyRule, values: ValueRule, settings: TableSettings, host: Host
) -> tuple[MemoryBackend, Opening]:
    """All of the state, in memory."""
    chosen = replace(settings.recovery, value_schema_id=values.schema.id)
    with recover(log, key_groups=keys.owned, at_least=writer.position, settings=chosen, host=host) as recovery:
        backend = MemoryBackend.recovered(recovery, keys, values)
    return backend, Opening(position=writer.position)


def _check_directory(kind: BackendKind, directory: str | PathLike[str] | None) -> None:
    if kind is BackendKind.ROCKSDB:
        require_rocksdict()
        if directory is None:
            raise ConfigError("a table in RocksDB needs a directory", hint="Give directory=..., on a local disk")
    elif directory is not None:
        raise ConfigError("a table in a dict has no directory", hint='Leave it out, or give backend="rocksdb"')


def _share(log: Descriptor, own_partitions: Sequence[int] | None, own_key_group: int | None) -> _Share:
    """What is owned. Raises ConfigError for what the log does not have, or cannot be owned apart."""
    if own_key_group is not None:
        if own_partitions is not None or log.hash_rule is not HashRule.CALLER:
            raise ConfigError(
                "a key group is owned by itself in a log whose callers name it",
                hint='Make the log with hash_rule="caller", or give own_partitions alone',
            )
        return _Share((_own_partition(log, own_key_group),), frozenset([own_key_group]), own_key_group)
    if own_partitions is None:
        return _Share(None, None)
    taken = tuple(sorted(set(own_partitions)))
    groups = (group for one in taken for group in key_groups_of_partition(one, log.partitions, log.key_groups))
    return _Share(taken, frozenset(groups))


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


def _default_writer(share: _Share) -> str:
    if share.partitions is None:
        return _NAME
    if len(share.partitions) == 1:
        return f"{_NAME}-{share.partitions[0]}"
    raise ConfigError("a table on several partitions needs a name", hint="Give writer=..., the same in every life")
