"""statelog: a durable, event-sourced state log on Kafka, with snapshots on any file system.

The package itself has the ten names that programs need first. Each is loaded on first use, so that `import statelog`
costs nothing. The subpackages (`statelog.producer`, `statelog.recovery`, `statelog.materializer`, ...) have the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statelog import errors, testing
    from statelog.log import LogOptions, Where, open  # noqa: A004 - the name that users look for, as gzip.open
    from statelog.producer import Writer
    from statelog.recovery import recover
    from statelog.tables import standby, table, worker

__all__ = [
    "LogOptions",
    "Where",
    "Writer",
    "errors",
    "open",
    "recover",
    "standby",
    "table",
    "testing",
    "worker",
]

__version__: str

_HOME_OF = {
    "LogOptions": "statelog.log",
    "Where": "statelog.log",
    "Writer": "statelog.producer",
    "open": "statelog.log",
    "recover": "statelog.recovery",
    "standby": "statelog.tables",
    "table": "statelog.tables",
    "worker": "statelog.tables",
}
_MOVED = {
    "statelog.materializer": ("Materializer", "MaterializerSettings", "run_round"),
    "statelog.pending": ("Pending",),
    "statelog.producer": ("Coordinator", "TaskWriter", "WriterSettings"),
    "statelog.recovery": ("AtCheckpoint", "AtPosition", "RecoverySettings", "read", "recover_snapshot"),
    "statelog.log": ("Log",),
    "statelog.tables": ("Standby", "Table", "TableSettings", "Worker"),
}
"""The names that 0.1 had here, too. They warn, and go with 0.4."""
_MOVED_TO = {name: room for room, names in _MOVED.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("statelog")
    if name in _HOME_OF:
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found
    if name in _MOVED_TO:
        from statelog.warn import warn_caller

        room = _MOVED_TO[name]
        warn_caller(f"statelog.{name} is {room}.{name} since 0.2; the old name goes with 0.4", DeprecationWarning)
        return getattr(import_module(room), name)
    try:
        return import_module(f"statelog.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"statelog.{name}":
            raise  # The subpackage exists, but one of its dependencies is missing.
        raise AttributeError(f"module 'statelog' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
