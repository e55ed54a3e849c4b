"""`table`: opens keyed state that survives, and makes its log first if asked to.

    1  open the log                       storage
    2  lock the local directory, if any   backends/home.py
       compare it with the ledger         opening/local.py: one that proves a loss is kept, and nothing is appended
    3  the owner's Open                   producer: fences the former owner, so what is committed is final
    4  the state at or above that Open    the backend

Invariant: whatever fails on the way, nothing stays open.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from statelog.producer import Writer
from statelog.recovery import Host, recover
from statelog.schemas.choices import one_of
from statelog.storage import Log, LogOptions, Where
from statelog.storage import open as open_log
from statelog.tables.backends.backend import Backend, BackendKind, StatePlace
from statelog.tables.backends.home import Home
from statelog.tables.backends.memory import MemoryBackend
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opening.opened import Opened, Opening
from statelog.tables.opening.share import Share, check_directory, share_of
from statelog.tables.remote.opening import RemoteOpening
from statelog.tables.settings import Loading, TableSettings
from statelog.tables.table import Table

__all__ = ["owners_place", "table"]


def table(
    name: str,
    where: Where,
    *,
    create: bool | LogOptions = False,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    writer: str | None = None,
    own_partitions: Sequence[int] | None = None,
    own_key_group: int | None = None,
    settings: TableSettings | None = None,
    host: Host | None = None,
) -> Table[Any, Any]:
    """Open keyed state that survives: a mapping that is back after a kill, exactly, and its last commit's progress.

        with statelog.table("counts", where, create=True) as counts:
            counts[b"alice"] = b"1"
            counts.commit({"offset": 42})

    Opening fences the former owner, and recovers the state at or above that fence. `create` is that of
    `statelog.open`. `backend` is "dict", or "rocksdb" for state larger than memory: then `directory` is where it is
    kept between lives, so that a restart reads only what was committed since.

    `own_partitions` limits the table to a share of the log's partitions, `own_key_group` to one key group, in a log
    whose callers name them (`hash_rule="caller"`) and whose partitions hold one each: an input's partition, say.
    `writer` names the owner; by default "table", and for a single partition with its number behind. `host` is for
    simulations.

    Raises NotFound without `create`, ConfigError, LogInUse if another table has the directory open, Fenced, Damaged,
    Unavailable, StorageFull.
    """
    check_directory(one_of(BackendKind, "backend", backend), directory)
    chosen, machine = settings or TableSettings(), host or Host()
    with ExitStack() as opened:
        log = open_log(name, where, create=create)
        opened.callback(log.close)
        share = share_of(log.descriptor, own_partitions, own_key_group)
        made = _open(opened, log, directory, writer, share, chosen, machine)
        keyed = Table[Any, Any](made)
        opened.pop_all()
        return keyed


def _open(
    stack: ExitStack,
    log: Log,
    directory: str | PathLike[str] | None,
    writer_name: str | None,
    share: Share,
    settings: TableSettings,
    host: Host,
) -> Opened:
    owner = share.owner(writer_name)
    home = None if directory is None else Home(Path(directory), log.name, owner)
    keys = KeyRule(log.descriptor, share.key_groups, share.one)
    part = None
    if home is not None:
        stack.callback(home.close)
        from statelog.tables.remote.local import PartOpening

        part = PartOpening(log, home, keys, ValueRule(log.value_schemas.newest()), settings, host)
        part.look()
    writer = Writer(log, owner, partitions=share.partitions, settings=settings.writer, seams=host)
    stack.push(writer)
    values = ValueRule(writer.grant.value_schema)
    found: Backend
    if part is None:
        found, opening = _recovered(log, writer, keys, values, settings, host)
    else:
        remote = RemoteOpening(log, writer, keys, values, settings, host)
        found, opening = part.open_part(remote, owners_place(writer))
    stack.callback(found.close)
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


def owners_place(writer: Writer) -> StatePlace:
    """Since the owner's Open nothing can have changed its key groups: the state is the one at that place, too."""
    return StatePlace(writer.place, len(writer.accepted_losses))


def _recovered(
    log: Log, writer: Writer, keys: KeyRule, values: ValueRule, settings: TableSettings, host: Host
) -> tuple[Backend, Opening]:
    """In memory: all of the state, or what is read before the table opens."""
    if settings.loading is not Loading.FIRST:
        remote = RemoteOpening(log, writer, keys, values, settings, host).in_memory()
        if remote is not None:
            return remote, Opening(position=writer.position)
    chosen = replace(settings.recovery, value_schema_id=values.schema.id)
    with recover(log, key_groups=keys.owned, at_least=writer.place, settings=chosen, host=host) as recovery:
        backend = MemoryBackend.recovered(recovery, keys, values)
    return backend, Opening(position=writer.position)
