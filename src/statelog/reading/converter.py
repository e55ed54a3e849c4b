"""`Converter`: changes of any value schema of a log as changes of one, from runs and from chunks."""

import pyarrow as pa

from statelog.errors import IncompatibleSchema
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.values.schema import ValueSchema, convert
from statelog.storage.log.log import Log


class Converter:
    """Converts to one value schema. `newest_id` is the newest of that one and those met so far."""

    def __init__(self, log: Log, target_id: int | None = None, *, drops_fields: bool = True) -> None:
        """`target_id` is the schema to convert to, None for the newest. Without `drops_fields` values of a newer schema
        are refused even if they convert, because fields that only it has would be lost.
        """
        self._drops_fields = drops_fields
        self._log = log
        schemas = log.value_schemas
        self.target: ValueSchema = schemas.newest() if target_id is None else schemas.get(target_id)
        self.schema = change_schema(log.descriptor.key_type, self.target.arrow_type)
        self.newest_id = self.target.id

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """A chunk's changes. Raises IncompatibleSchema if the target is older than their schema and cannot, or may not,
        read it.
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
        """A run's changes. Raises IncompatibleSchema, as for a chunk's."""
        if value_schema_id == self.target.id:
            return changes
        batches = [self.batch(batch, value_schema_id) for batch in changes.to_batches()]
        return pa.Table.from_batches(batches, self.schema)


def newer_values(found_id: int, asked_id: int) -> IncompatibleSchema:
    """The error for values in a newer schema than requested: converting them would drop fields."""
    return IncompatibleSchema(
        "there are values of a newer schema than they are read in",
        hint="Plan the read again; in Spark load() and start the query again: a DataFrame keeps the columns of its"
        " load(). The newest schema reads all values",
        found_schema=found_id,
        asked_schema=asked_id,
    )
