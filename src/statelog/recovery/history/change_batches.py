"""`ChangeBatches`: changes as a reader sees them, with whose they are, in batches that are worth their overhead. Pure.

Chunks come in the order in which they are read; small ones are joined. Never loops over rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from statelog.reading.plan import CommitFacts

__all__ = ["ChangeBatches", "history_schema"]

_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 << 20
_TIME = pa.timestamp("ms", tz="UTC")


def history_schema(change_schema: pa.Schema) -> pa.Schema:
    """The columns of committed changes, where changes have `change_schema`.

    key, op (0 put, 1 delete), value, key_group as there, and of the commit: writer, checkpoint, position (the one right
    behind it), timestamp (the broker's, UTC; null if the ledger has none).
    """
    own = [change_schema.field(name) for name in ("key", "op", "value", "key_group")]
    facts = [("writer", pa.string()), ("checkpoint", pa.int64()), ("position", pa.int64()), ("timestamp", _TIME)]
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in facts)])


class ChangeBatches:
    """Joins chunks to batches of at most 65,536 rows or about 8 MiB; a chunk that is larger goes as it is.

    `commits` are those of the plan: `add` names one by its number.
    """

    def __init__(self, commits: Sequence[CommitFacts], change_schema: pa.Schema) -> None:
        self.schema = history_schema(change_schema)
        self._change_schema = change_schema
        times = [one.timestamp_ms for one in commits]
        self._writers = pa.array([one.writer for one in commits], pa.string())
        self._checkpoints = np.array([one.checkpoint_id for one in commits], np.int64)
        self._positions = np.array([one.position for one in commits], np.int64)
        self._times = pa.array([None if time < 0 else time for time in times], pa.int64()).cast(_TIME)
        self._chunks: list[pa.RecordBatch] = []
        self._numbers: list[int] = []
        self._rows = 0
        self._bytes = 0

    def add(self, changes: pa.RecordBatch, commit: int) -> Iterator[pa.RecordBatch]:
        """The next changes, of one commit; yields what is ready."""
        if not changes.num_rows:
            return
        if self._chunks and (
            self._rows + changes.num_rows > _BATCH_ROWS or self._bytes + changes.nbytes > _BATCH_BYTES
        ):
            yield self._take()
        self._chunks.append(changes)
        self._numbers.append(commit)
        self._rows += changes.num_rows
        self._bytes += changes.nbytes

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rest."""
        if self._chunks:
            yield self._take()

    def _take(self) -> pa.RecordBatch:
        lengths = [chunk.num_rows for chunk in self._chunks]
        number = np.repeat(np.array(self._numbers, np.int64), lengths)
        changes = self._chunks[0] if len(self._chunks) == 1 else _joined(self._chunks, self._change_schema)
        which = pa.array(number)
        columns = [changes.column(name) for name in ("key", "op", "value", "key_group")]
        columns += [
            self._writers.take(which),
            pa.array(self._checkpoints[number]),
            pa.array(self._positions[number]),
            self._times.take(which),
        ]
        self._chunks, self._numbers, self._rows, self._bytes = [], [], 0, 0
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _joined(chunks: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.concat_arrays([chunk.column(i) for chunk in chunks]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
