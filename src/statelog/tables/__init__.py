"""Tables: keyed state that survives, for a person's own loop. Holds no protocol of its own."""

from statelog.tables.group.context import InputTopic, WorkerHooks
from statelog.tables.group.open_worker import worker
from statelog.tables.group.worker import Worker
from statelog.tables.open_table import table
from statelog.tables.setup import BackendKind, Loading, TableSettings
from statelog.tables.standbys.standby import Standby, standby
from statelog.tables.statistics import TableStatistics
from statelog.tables.table import Table

__all__ = [
    "BackendKind",
    "InputTopic",
    "Loading",
    "Standby",
    "Table",
    "TableSettings",
    "TableStatistics",
    "Worker",
    "WorkerHooks",
    "standby",
    "table",
    "worker",
]
