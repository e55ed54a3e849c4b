"""Spark's own cost for data sources in Python: a source of prepared rows, or of Parquet files; empty sinks; and a sink
that only sends the rows to Kafka.

No source or sink of statelog can be faster; the figures show the distance.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

__all__ = ["Floor"]

_BATCH_ROWS = 65_536
_KEY, _VALUE = b"key-000000000000", bytes(100)
_RECORD_BYTES = 900_000
_clients: dict[str, Producer] = {}


class Floor(DataSource):
    """`format("floor")`: a source and sinks that do the least.

    The source reads `rows` prepared rows in `tasks` tasks, or the rows of `files`, a task for each. The sinks do
    nothing, or, with the options `topic` and `brokers`, send the rows unchanged.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "floor"

    def schema(self) -> str:
        """Return the schema of the workload's keys and values."""
        return "key binary, value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of prepared rows, or of files."""
        del schema
        files = self.options.get("files")
        return _Files(files.split(",")) if files else _Reader(int(self.options["rows"]), int(self.options["tasks"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer that does nothing, or sends."""
        del schema, overwrite
        topic = self.options.get("topic")
        return _Sender(self.options["brokers"], topic) if topic else _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        """Return a streaming writer that does nothing."""
        del schema, overwrite
        return _StreamWriter()


class _Reader(DataSourceReader):
    def __init__(self, rows: int, tasks: int) -> None:
        self._rows, self._tasks = rows, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        arrays = [pa.repeat(pa.scalar(one, pa.binary()), _BATCH_ROWS) for one in (_KEY, _VALUE)]
        batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
        for start in range(0, self._rows // self._tasks, _BATCH_ROWS):
            yield batch.slice(0, min(_BATCH_ROWS, self._rows // self._tasks - start))


class _Files(DataSourceReader):
    """A reader that only decodes Parquet, without checksums or checks."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted = pa.schema([("key", pa.binary()), ("value", pa.binary())])
        for batch in pq.ParquetFile(partition.value).iter_batches(_BATCH_ROWS, columns=wanted.names):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as Spark's own Arrow class
        return _taken(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class _Sender(_Writer):
    """A writer that sends Spark's rows as compressed Arrow, in records of the largest default size, and waits."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._brokers, self._topic = brokers, topic

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as above
        if self._brokers not in _clients:
            settings = {"bootstrap.servers": self._brokers, "enable.idempotence": True, "compression.type": "lz4"}
            _clients[self._brokers] = Producer(settings)
        producer = _clients[self._brokers]
        for batch in iterator:
            rows = max(1, batch.num_rows * _RECORD_BYTES // batch.nbytes)
            for start in range(0, batch.num_rows, rows):
                producer.produce(self._topic, batch.slice(start, rows).serialize().to_pybytes())
            producer.poll(0)
        producer.flush()
        return WriterCommitMessage()


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as Spark's own Arrow class
        return _taken(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        pass


def _taken(iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in iterator:
        pass
    return WriterCommitMessage()
