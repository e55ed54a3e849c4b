"""`spark.readStream.format("statelog")` is refused, where Spark shows the message: state is read in batch.

Spark runs a stream's reader in a worker that reports what its methods raise, and nothing that making it raises.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from statelog.errors import Misuse
from statelog.spark.reported import reported

__all__ = ["RefusedStream"]


class RefusedStream(DataSourceStreamReader):
    """A reader that refuses to begin."""

    @reported()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raise Misuse."""
        raise _refused()

    @reported()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802  # Spark's
        """Raise Misuse."""
        raise _refused()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  # Spark's signature
        """Raise Misuse."""
        raise _refused()


def _refused() -> Misuse:
    return Misuse(
        "statelog has no streaming read",
        hint="Read the state with spark.read, in a stream inside foreachBatch; follow changes with Recovery.follow",
    )
