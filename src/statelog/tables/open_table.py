"""`table`: opens keyed state that survives, and on request makes its log first: docs/protocol-table.md, 1 to 4.

Invariant: if an opening fails, nothing stays open.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike

from statelog.environment import current_environment
from statelog.log import LogOptions, Where
from statelog.log.options import K, V
from statelog.reading import folded_at
from statelog.schemas.names import settings_or
from statelog.tables.setup import BackendKind, TableSettings, TableSetup
from statelog.tables.state.values import ValueRule
from statelog.tables.state_opener import ExistingState, StateOpener, Wanted
from statelog.tables.table import Table


def table(
    name: str,
    where: Where,
    *,
    create: bool | LogOptions[K, V] = False,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    writer: str | None = None,
    partitions: Sequence[int] | None = None,
    key_group: int | None = None,
    settings: TableSettings | None = None,
) -> Table[K, V]:
    """Open keyed state that survives: a mapping that comes back exactly after a kill, with its last commit's progress.

        with statelog.table("counts", where, create=True) as counts:
            counts[b"alice"] = b"1"
            counts.commit({"offset": 42})

    Opening fences the former owner, and recovers the state at or above that fence. `create` is that of
    `statelog.open`. `backend` is "dict", or "rocksdb" for state larger than memory. The latter needs a `directory`,
    which it retains across restarts: a restart then reads only later commits.

    `partitions` limits the table to these partitions of the log. `key_group` limits it to one key group, such as an
    input's partition. That needs a log whose callers name key groups (`hash_rule="caller"`), with one in each
    partition. `writer` names the owner; by default "table", or "table-3" for partition 3 alone.

    Raises NotFound without `create`, ConfigError, LogInUse if another table has the directory open, Fenced, Damaged,
    Unavailable, StorageFull.
    """
    with current_environment().step("table_open", name), ExitStack() as failing:
        setup = TableSetup.open(
            name,
            where,
            create=create,
            backend=backend,
            directory=directory,
            writer=writer,
            partitions=partitions,
            key_group=key_group,
            settings=settings_or(settings, TableSettings()),
        )
        failing.push(setup)
        existing = ExistingState.found(setup, ValueRule(setup.log.value_schemas.newest()), may_lack=True)
        owner = setup.writer()
        failing.push(owner)
        state, report = StateOpener(setup, Wanted.by(owner, folded_at(setup.log))).open(existing)
        failing.callback(state.close)
        setup.environment.crash("table-open")
        keyed = Table[K, V](setup, owner, state, report)
        failing.pop_all()
        return keyed
