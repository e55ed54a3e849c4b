"""Fields named by an option alone (op, checkpoint field): a misspelt name must not pass as one that no row has.

No schema knows them, and a row may lack them: without the op field it is a put, without the checkpoint field no commit
follows. So a wrong name would quietly make puts of deletes, and one commit of many.

Invariant: nothing is committed, and no more than `MOST_ROWS` rows are taken, before some row had each of them.
"""

import pyarrow as pa

from statelog.cli.inputs.fields import FieldMapping
from statelog.errors import InvalidChange

__all__ = ["MOST_ROWS", "NamedFields"]

MOST_ROWS = 100_000
_HINTS = {
    "--op-field": "Check --op-field; leave it out for an input without deletes, or raise --checkpoint-every",
    "--checkpoint-field": "Check --checkpoint-field; without it, every 100,000 rows are a commit",
}


class NamedFields:
    """Which of the named fields no row of this run had so far."""

    def __init__(self, mapping: FieldMapping) -> None:
        self._unseen: dict[str, str] = {}
        self._rows = 0
        if mapping.op_field is not None and mapping.delete_value is not None:  # Else a row without it is refused.
            self._unseen["--op-field"] = mapping.op_field
        if mapping.checkpoint_field is not None:
            self._unseen["--checkpoint-field"] = mapping.checkpoint_field

    def look(self, batch: pa.RecordBatch) -> None:
        """Note which fields the rows of a batch have. Raises InvalidChange if too many rows lack one."""
        if not self._unseen:
            return
        for option, name in list(self._unseen.items()):
            number = batch.schema.get_field_index(name)
            if number >= 0 and batch.column(number).null_count < batch.num_rows:
                del self._unseen[option]
        self._rows += batch.num_rows
        if self._rows > MOST_ROWS:
            self.require()

    def require(self) -> None:
        """Raise InvalidChange if there is a field that no row had: before a commit."""
        for option, name in self._unseen.items():
            raise InvalidChange(f"no row of the input has the field {name!r}", hint=_HINTS[option], option=option)
