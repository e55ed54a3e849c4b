"""Tables: keyed state that survives, for a person's own loop. Holds no protocol of its own."""

from statelog.tables.opening.open_table import table
from statelog.tables.settings import Loading, TableSettings
from statelog.tables.standing.open_standby import standby
from statelog.tables.standing.standby import Look, Standby
from statelog.tables.state.opening import Opening
from statelog.tables.state.store import BackendKind
from statelog.tables.table import Table
from statelog.tables.working.input import InputStart
from statelog.tables.working.open_worker import worker
from statelog.tables.working.worker import Worker

__all__ = [
    "BackendKind",
    "InputStart",
    "Loading",
    "Look",
    "Opening",
    "Standby",
    "Table",
    "TableSettings",
    "Worker",
    "standby",
    "table",
    "worker",
]
