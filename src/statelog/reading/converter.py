"""`Converter`: changes of any value schema of a log as changes of one, be they of runs or of chunks."""

import pyarrow as pa

from statelog.errors import IncompatibleSchema
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.values.schema import ValueSchema, convert
from statelog.storage.log.log import Log

__all__ = ["Converter", "newer_values"]


class Converter:
    """Changes of any value schema of the log as changes of one. `newest_id` is the newest that was met, or is made."""

    def __init__(self, log: Log, target_id: int | None = None, *, drops_fields: bool = True) -> None:
        """`target_id` is the schema to convert to, None for the newest. Without `drops_fields` no value of a newer one
        is converted, though it might be: what only that one has would be lost.
        """
        self._drops_fields = drops_fields
        self._log = log
        schemas = log.value_schemas
        self.target: ValueSchema = schemas.newest() if target_id is None else schemas.get(target_id)
        self.schema = change_schema(log.descriptor.key_type, self.target.arrow_type)
        self.newest_id = self.target.id

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """A chunk's changes. Raises IncompatibleSchema if the target is older than their schema and cannot read it, or
        may not.
        """
        if value_schema_id == self.target.id:
            return changes
        if value_schema_id > self.target.id and not self._drops_fields:
            raise newer_values(value_schema_id, self.target.id)
        self.newest_id = max(self.newest_id, value_schema_id)
        writer = self._log.value_schemas.get(value_schema_id)
        value = convert(changes.column("value"), writer, self.target)
        return pa.RecordBatch.from_arrays([*changes.columns[:3], value], schema=self.schema)

    def table(self, changes: pa.Table, value_schema_id: int) -> pa.Table:
        """A run's changes. Raises as `batch`."""
        if value_schema_id == self.target.id:
            return changes
        batches = [self.batch(batch, value_schema_id) for batch in changes.to_batches()]
        return pa.Table.from_batches(batches, self.schema)


def newer_values(found_id: int, asked_id: int) -> IncompatibleSchema:
    """That there are values of a newer schema than was asked for, which would lose fields."""
    return IncompatibleSchema(
        "there are values of a newer schema than they are read in",
        hint="Plan the read again; in Spark load() and start the query again: a DataFrame keeps the columns of its"
        " load(). The newest schema reads all values",
        found_schema=found_id,
        asked_schema=asked_id,
    )
