"""Tables under test: on any rig of a log, with any backend, and what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statelog
from statelog.tables import Table
from tests.support.rigs.log import UNSAFE, LogRig

__all__ = ["TableRig", "content"]


@dataclass(frozen=True, slots=True)
class TableRig:
    """Opens tables on the log of `rig`; with a `directory`, in RocksDB."""

    rig: LogRig
    directory: Path | None

    @property
    def is_kept(self) -> bool:
        """Whether the state survives on the local disk, too."""
        return self.directory is not None

    def open(self, **options: Any) -> Table[Any, Any]:
        """A table as another process would open it; the log is made if there is none."""
        where: dict[str, Any] = {"kafka": self.rig.kafka(), "root": self.rig.store(), "allow_unsafe": UNSAFE}
        if self.directory is not None:
            where |= {"backend": "rocksdb", "directory": self.directory}
        made: dict[str, Any] = {"create": True, "replication_factor": 1, "partitions": 4, "key_groups": 16}
        return statelog.table(self.rig.name, **{**where, **made, **options})


def content(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """All of it, from one pass."""
    return dict(table.items())
