"""Tables under test, on any rig of a log, with any backend, and their contents."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import statelog
from statelog.environment import CrashPoint, Environment
from statelog.errors import ClosedError, NotFound
from statelog.log import LogOptions
from statelog.materializer import run_round
from statelog.tables import Loading, Standby, Table, TableSettings
from tests.support.rigs.log import LogRig, settings_for

__all__ = ["STATE", "TableRig", "content", "home", "kept_table", "stalling"]


@dataclass(frozen=True, slots=True)
class TableRig:
    """A rig that opens tables on the log of `rig`; with a `directory`, in RocksDB.

    With `scratch`, the log is rolled up before every other incarnation: so it finds a snapshot, or one with a tail.
    """

    rig: LogRig
    directory: Path | None
    loading: Loading = Loading.FIRST
    scratch: Path | None = None
    lives: "count[int]" = field(default_factory=count)

    @property
    def is_kept(self) -> bool:
        """Whether the state survives on the local disk, too."""
        return self.directory is not None

    def open(self, **options: Any) -> Table[Any, Any]:
        """Return a table as another process would open it; the log is made if there is none."""
        names = {one.name for one in fields(LogOptions)}
        said: dict[str, Any] = {name: options.pop(name) for name in names & options.keys()}
        shape: dict[str, Any] = {"partitions": 4, "key_groups": 16, **said}
        made: dict[str, Any] = {"create": LogOptions(**shape)}
        if self.loading is not Loading.FIRST:
            options["settings"] = replace(options.get("settings") or TableSettings(), loading=self.loading)
        if self.scratch is not None and next(self.lives) % 2:
            self.roll_up(self.scratch)
        environment: Environment = options.pop("environment", None) or Environment()
        kept = self._kept(self.directory, options)
        return environment.run(lambda: statelog.table(self.rig.name, **{**kept, **made, **options}))

    def roll_up(self, scratch: Path) -> None:
        """Make a snapshot of the log, if there is one."""
        with suppress(NotFound), self.rig.open() as log:
            run_round(log, settings_for(scratch))

    def standby(self, name: str = "standby", **options: Any) -> Standby[Any, Any]:
        """Return a standby in another process, with a directory of its own; by default it moves only when asked to."""
        kept = self._kept(None if self.directory is None else self.directory.with_name(name), options)
        environment: Environment = options.pop("environment", None) or Environment()
        followed: dict[str, Any] = {"poll_s": None, **kept, **options}
        return environment.run(statelog.standby, self.rig.name, **followed)

    def _kept(self, directory: Path | None, options: dict[str, Any]) -> dict[str, Any]:
        """Return the log's place, by the ports of `options` or by new ones, and the directory.

        `owned` partitions are the table's; `partitions` is how many the log has.
        """
        if "owned" in options:
            options["partitions"] = options.pop("owned")
        ports = {name: options.pop(name) for name in ("kafka", "root") if name in options}
        where = {"where": replace(self.rig.where(), **ports)}
        return where if directory is None else where | {"backend": "rocksdb", "directory": directory}


def stalling(crash: CrashPoint, key_groups: int) -> CrashPoint:
    """Return the crash point of a slow incarnation, which loads no more than so many times per key group."""
    left = key_groups

    def pass_on(point: str) -> None:
        nonlocal left
        crash(point)
        if point == "group-loaded":
            left -= 1
            if left == 0:
                raise ClosedError("the test lets nothing more be loaded")

    return pass_on


def content(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return all rows, from one pass."""
    return dict(table.items())


STATE = {b"k%d" % i: b"%d" % i for i in range(50)}


def kept_table(rig: LogRig, directory: Path) -> TableRig:
    """Return a table with this directory, which holds STATE."""
    tables = TableRig(rig, directory)
    with tables.open() as table:
        table.update(STATE)
        table.commit({"n": 1})
    return tables


def home(tables: TableRig) -> Path:
    """Return the directory of its database."""
    assert tables.directory is not None
    return tables.directory / "log" / "table"
