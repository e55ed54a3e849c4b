"""`table`: opens keyed state that survives, and makes its log first if asked to.

    1  open the log                       storage
    2  lock the local directory, if any   state/home.py
       compare it with the ledger         state/opening.py: one that proves a loss is kept, and nothing is appended
    3  the owner's Open                   producer: fences the former owner, so what is committed is final
    4  the state at or above that Open    state/opening.py

Invariant: whatever fails on the way, nothing stays open.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

from statelog.environment import Environment, current_environment
from statelog.producer import Writer
from statelog.schemas.names import parse_enum
from statelog.storage import Log, LogOptions, Where
from statelog.storage import open as open_log
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.opened import Opened
from statelog.tables.opening.share import Share, check_directory, share_of
from statelog.tables.settings import TableSettings
from statelog.tables.state.home import Home
from statelog.tables.state.opening import StateOpening, Wanted
from statelog.tables.state.store import BackendKind
from statelog.tables.table import Table

__all__ = ["table"]


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
    `writer` names the owner; by default "table", and for a single partition with its number behind.

    Raises NotFound without `create`, ConfigError, LogInUse if another table has the directory open, Fenced, Damaged,
    Unavailable, StorageFull.
    """
    check_directory(parse_enum(BackendKind, "backend", backend), directory)
    chosen, machine = settings or TableSettings(), current_environment()
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
    environment: Environment,
) -> Opened:
    owner = share.owner(writer_name)
    home = None if directory is None else Home(Path(directory), log.name, owner)
    if home is not None:
        stack.callback(home.close)
    keys = KeyRule(log.descriptor, share.key_groups, share.one)
    opening = StateOpening(log, home, keys, settings, environment, may_lack=True)
    opening.look(ValueRule(log.value_schemas.newest()))
    writer = Writer(log, owner, partitions=share.partitions, settings=settings.writer)
    stack.push(writer)
    wanted = Wanted.by(writer)
    state, report = opening.open(wanted)
    stack.callback(state.close)
    environment.crash("table-open")
    return Opened(
        log=log,
        writer=writer,
        keys=keys,
        values=wanted.values,
        state=state,
        home=home,
        opening=report,
        settings=settings,
        environment=environment,
    )
