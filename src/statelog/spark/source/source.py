"""`spark.read.format("statelog")`: what the option `read` names: a state, changes, or a view of the log itself.

Spark asks for the columns once for each `load()`; what is planned then travels with the data source object, and every
scan of the DataFrame reads by it.
"""

import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from statelog.errors import ConfigError
from statelog.spark.clients import planned
from statelog.spark.options.address import log_address
from statelog.spark.options.read import read_of
from statelog.spark.reported import reported
from statelog.spark.source.changes import ChangeReader, plan_change_read
from statelog.spark.source.read_plan import Loaded
from statelog.spark.source.state import PushingStateReader, StateReader, plan_state
from statelog.spark.source.view_reader import ViewReader, plan_view
from statelog.spark.source.views import VIEWS

__all__ = ["Loaded", "load", "reader"]

_STATE, _CHANGES = "state", "changes"
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@reported()
def load(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    """The columns that a read with these options has, and its plan. Raises ConfigError, NotFound, Unavailable."""
    kind = read_of(options)
    if kind not in (_STATE, _CHANGES):
        _check_kind(kind)
    return planned(log_address(options), lambda: _planned(options, kind))


def _planned(options: Mapping[str, str], kind: str) -> tuple[StructType, Loaded]:
    if kind == _STATE:
        return plan_state(options)
    if kind == _CHANGES:
        return plan_change_read(options)
    return plan_view(options, kind)


@reported()
def reader(options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> DataSourceReader:
    """The reader of one scan. `loaded` is None where the user gave the columns. Raises ConfigError, as planning."""
    kind = read_of(options)
    if kind == _STATE:
        return (PushingStateReader if _takes_filters() else StateReader)(options, schema, loaded)
    if kind == _CHANGES:
        return ChangeReader(options, schema, loaded)
    _check_kind(kind)
    return ViewReader(options, schema, kind, loaded or plan_view(options, kind)[1])


def _check_kind(kind: str) -> None:
    if kind not in VIEWS:
        raise ConfigError(f"the option read is {kind!r}", hint=f"It is one of {', '.join((_STATE, _CHANGES, *VIEWS))}")


def _takes_filters() -> bool:
    """Whether Spark runs us in the worker that hands over filters. In any other it refuses a reader that takes them, so
    no setting of ours says which one to make.
    """
    return _PUSHING_WORKER in sys.modules
