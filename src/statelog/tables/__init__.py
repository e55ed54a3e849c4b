"""Tables: keyed state that survives, for a person's own loop. Holds no protocol of its own."""

from statelog.tables.backends.backend import BackendKind
from statelog.tables.changes.views import TableItems, TableValues
from statelog.tables.commits.table_commit import TableCommit
from statelog.tables.opening.open_table import table
from statelog.tables.opening.opened import Opening
from statelog.tables.settings import TableSettings
from statelog.tables.table import Table

__all__ = ["BackendKind", "Opening", "Table", "TableCommit", "TableItems", "TableSettings", "TableValues", "table"]
