"""statelog: a durable, event-sourced state log on Kafka, with snapshots on any file system.

It has the names that programs need first. Each is loaded on first use, so that `import statelog` costs nothing. The
subpackages (`statelog.producer`, `statelog.recovery`, `statelog.materializer`, ...) have the rest, and
`statelog.errors` has every error.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statelog.log import Log, LogOptions, Where, open  # noqa: A004 - the name that users look for, as gzip.open
    from statelog.materializer import Materializer, MaterializerSettings, run_round
    from statelog.pending import Pending
    from statelog.producer import Coordinator, TaskWriter, Writer, WriterSettings
    from statelog.recovery import AtCheckpoint, AtPosition, RecoverySettings, read, recover, recover_snapshot
    from statelog.tables import Standby, Table, TableSettings, Worker, standby, table, worker

__all__ = [
    "AtCheckpoint",
    "AtPosition",
    "Coordinator",
    "Log",
    "LogOptions",
    "Materializer",
    "MaterializerSettings",
    "Pending",
    "RecoverySettings",
    "Standby",
    "Table",
    "TableSettings",
    "TaskWriter",
    "Where",
    "Worker",
    "Writer",
    "WriterSettings",
    "open",
    "read",
    "recover",
    "recover_snapshot",
    "run_round",
    "standby",
    "table",
    "worker",
]

__version__: str

_HOMES = {
    "statelog.materializer": ("Materializer", "MaterializerSettings", "run_round"),
    "statelog.pending": ("Pending",),
    "statelog.producer": ("Coordinator", "TaskWriter", "Writer", "WriterSettings"),
    "statelog.recovery": ("AtCheckpoint", "AtPosition", "RecoverySettings", "read", "recover", "recover_snapshot"),
    "statelog.log": ("Log", "LogOptions", "Where", "open"),
    "statelog.tables": ("Standby", "Table", "TableSettings", "Worker", "standby", "table", "worker"),
}
_HOME_OF = {name: room for room, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("statelog")
    if name in _HOME_OF:
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found
    try:
        return import_module(f"statelog.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"statelog.{name}":
            raise  # The subpackage exists, but one of its dependencies is missing.
        raise AttributeError(f"module 'statelog' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
