"""`standby`: opens the state of a table that another process owns, without fencing it.

    1  open the log                        storage
    2  lock the local directory, if any    state/home.py: the standby's own, not the table's
    3  the newest state, and its feed      building.py
    4  follow                              follower.py

Invariant: whatever fails on the way, nothing stays open, and nothing was written to Kafka.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from statelog.environment import Environment, current_environment
from statelog.errors import ConfigError, NotFound
from statelog.recovery import RecoverySettings
from statelog.schemas.names import parse_enum
from statelog.storage import Log, Where
from statelog.storage import open as open_log
from statelog.tables.changes.keys import KeyRule
from statelog.tables.opening.share import Share, check_directory, share_of
from statelog.tables.settings import TableSettings
from statelog.tables.standing.building import Builder
from statelog.tables.standing.follower import Follower
from statelog.tables.standing.standby import Standby
from statelog.tables.state.home import Home
from statelog.tables.state.store import BackendKind

__all__ = ["standby"]


def standby(
    name: str,
    where: Where,
    *,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    writer: str | None = None,
    own_partitions: Sequence[int] | None = None,
    own_key_group: int | None = None,
    poll_s: float | None = 0.1,
    settings: TableSettings | None = None,
) -> Standby[Any, Any]:
    """Open a standby of a table: a read-only mapping that follows it, and may become it.

        with statelog.standby("counts", where) as counts:
            print(counts.get(b"alice", max_age_s=1.0), counts.age_s)

    What `statelog.table` takes means the same here: `writer`, `own_partitions` and `own_key_group` are those of the
    table. But `directory` is one of the standby's own, no log is made, and `loading` of the settings is always "first".
    The state is the newest when this returns; what was committed since is asked for every `poll_s` seconds, on a thread
    of its own. With None the state moves only when `refresh` is called.

    It needs the rights of a reader, and those of a writer when it is promoted. A lease holds the log for it while it is
    behind. Raises NotFound if there is no such log, ConfigError, LogInUse if the directory is in use, Damaged,
    Unavailable, StorageFull.
    """
    check_directory(parse_enum(BackendKind, "backend", backend), directory)
    if poll_s is not None and not 0 < poll_s <= TIMEOUT_MAX:
        hint = "A number of seconds; None: only `refresh` moves the state"
        raise ConfigError(f"poll_s is {poll_s} and must be above 0, and finite", hint=hint)
    with ExitStack() as opened:
        try:
            log = open_log(name, where)
        except NotFound as error:  # A standby makes no log.
            raise error.restated(hint="The owner's statelog.table(..., create=True) makes it") from None
        opened.callback(log.close)
        share = share_of(log.descriptor, own_partitions, own_key_group)
        follower = _open(opened, log, directory, share, share.owner(writer), poll_s, settings, current_environment())
        made: Standby[Any, Any] = Standby(follower, share)
        opened.pop_all()
        return made


def _open(
    stack: ExitStack,
    log: Log,
    directory: str | PathLike[str] | None,
    share: Share,
    owner: str,
    poll_s: float | None,
    settings: TableSettings | None,
    environment: Environment,
) -> Follower:
    chosen = settings or TableSettings(recovery=RecoverySettings(holder="standby"))
    # Local copies are those of changes that this process has written: of the owner's there are none.
    chosen = replace(chosen, recovery=replace(chosen.recovery, local_copies=None, value_schema_id=None))
    keys = KeyRule(log.descriptor, share.key_groups, share.one)
    home = None if directory is None else Home(Path(directory), log.name, owner)
    if home is not None:
        stack.callback(home.close)
    builder = Builder(log=log, owner=owner, keys=keys, home=home, settings=chosen, environment=environment)
    built = builder.build()
    stack.callback(built.close)
    return Follower(builder, built, poll_s, environment)
