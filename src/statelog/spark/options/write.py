"""Options of a write: whose it is, and what keeps it exactly once. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.schemas.names import check_name
from statelog.spark.options.address import LogAddress, log_address
from statelog.spark.options.parsing import COMMON, flag, lowered, number, refuse_unknown

__all__ = ["WriteOptions", "write_options"]

_WRITE = ("writerId", "uniqueKeys", "takeOver", "takeOverFrom", "queryId", "checkpointId", "batchId")
_SPARK = ("checkpointLocation", "queryName")  # Spark adds its own to those of a streaming sink.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write. `batch_id` is the micro-batch that a batch write stands for; `checkpoint_location` is '' if Spark's
    configuration names it, or there is none.
    """

    where: LogAddress
    writer: str
    unique_keys: bool = False
    take_over: bool = False
    take_over_from: str | None = None
    query_id: str | None = None
    checkpoint_id: int | None = None
    batch_id: int | None = None
    checkpoint_location: str = ""
    is_stream: bool = False

    @property
    def serves_query(self) -> bool:
        """Whether a streaming query writes, through its sink or through `upsert`."""
        return self.is_stream or self.batch_id is not None


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, *_WRITE), "write", own=_SPARK if streaming else ())
    writer = given.get("writerid")
    if not writer:
        raise ConfigError(
            "the option writerId is missing",
            hint="Name this job's writer: a job keeps its name for life, and no two jobs share one",
        )
    checkpoint, batch = number(given, "checkpointId"), number(given, "batchId")
    if streaming and (checkpoint is not None or batch is not None):
        raise ConfigError("checkpointId and batchId are for batch writes", hint="A stream numbers its own batches")
    if checkpoint is not None and batch is not None:
        raise ConfigError("checkpointId and batchId exclude each other", hint="Give the one that names your batch")
    return WriteOptions(
        where=log_address(given),
        writer=check_name("writer", writer),
        unique_keys=flag(given, "uniqueKeys"),
        take_over=flag(given, "takeOver"),
        take_over_from=given.get("takeoverfrom") or None,
        query_id=given.get("queryid") or None,
        checkpoint_id=checkpoint,
        batch_id=batch,
        checkpoint_location=given.get("checkpointlocation", ""),
        is_stream=streaming,
    )
