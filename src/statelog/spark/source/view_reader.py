"""A view of the log itself as a DataFrame: read by one task, up to the position that the ledger had at the `load()`."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statelog.spark.clients import cached_log
from statelog.spark.columns import check_columns, spark_arrow_schema
from statelog.spark.options.read import view_options
from statelog.spark.reported import reported
from statelog.spark.source.read_plan import Loaded, Planned
from statelog.spark.source.views import VIEWS

__all__ = ["ViewReader", "plan_view"]


def plan_view(options: Mapping[str, str], view: str) -> tuple[StructType, Loaded]:
    """The columns of a view, and its plan. Raises ConfigError, NotFound, Unavailable."""
    log = cached_log(view_options(options))
    taken = Planned(at=datetime.now(UTC), position=log.ledger.end(at_least=log.position))
    return from_arrow_schema(VIEWS[view].schema), Loaded(planned=taken)


class ViewReader(DataSourceReader):
    """Spark's view of a view."""

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, view: str, loaded: Loaded) -> None:
        self._where = view_options(options)
        self._view = view
        self._position = loaded.planned.position
        expected = from_arrow_schema(VIEWS[view].schema)
        check_columns(schema, expected, "the view")
        self._schema = spark_arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """One, whatever there is to read."""
        return [InputPartition(self._view)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # Spark's signature
        """The rows. Raises Damaged, Unavailable."""
        with reported():
            for table in VIEWS[self._view].tables(cached_log(self._where), self._position):
                yield from table.cast(self._schema).to_batches()
