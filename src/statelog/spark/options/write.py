"""Options of a write: whose it is, and what keeps it exactly once. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from statelog.errors import ConfigError
from statelog.schemas.key_groups import ranges_text, share
from statelog.schemas.names import check_name
from statelog.spark.options.address import LogAddress, log_address
from statelog.spark.options.parsing import COMMON, flag, lowered, number, numbers, refuse_unknown

__all__ = ["WriteOptions", "write_options"]

_WRITE = (
    *("writerId", "partitions", "share", "takeOver", "takeOverFrom", "queryId", "runId", "checkpointId", "batchId"),
    *("uniqueKeys", "sequenceBy", "nullDeletes"),
)
_SPARK = ("checkpointLocation", "queryName")  # Spark adds its own to those of a streaming sink.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write. `batch_id` is the micro-batch that a batch write stands for, `run_id` the run of its query.
    `checkpoint_location` is '' if Spark's configuration names it, or there is none. `share` is a worker's number, from
    0, and the number of workers.
    """

    where: LogAddress
    writer: str
    partitions: tuple[int, ...] | None = None
    share: tuple[int, int] | None = None
    unique_keys: bool = False
    sequence_by: str | None = None
    null_deletes: bool = False
    take_over: bool = False
    take_over_from: str | None = None
    query_id: str | None = None
    run_id: str | None = None
    checkpoint_id: int | None = None
    batch_id: int | None = None
    checkpoint_location: str = ""
    is_stream: bool = False

    @property
    def serves_query(self) -> bool:
        """Whether a streaming query writes, through its sink or through `upsert`."""
        return self.is_stream or self.batch_id is not None

    def taken(self, partitions: int) -> tuple[int, ...]:
        """The partitions that this write takes of a log that has so many: all, unless the options say which.

        Raises ConfigError if there are none, or the log lacks one.
        """
        taken = range(partitions) if self.partitions is None else self.partitions
        if self.share is not None:
            worker, workers = self.share
            taken = share(partitions, worker=worker, workers=workers)
        if not taken or max(taken) >= partitions:
            raise ConfigError(
                "the option partitions, or share, leaves nothing to write, or names what the log lacks",
                hint=f"The log has the partitions 0:{partitions}, and each belongs to one job at a time",
                partitions=None if self.partitions is None else ranges_text(self.partitions),
                share=None if self.share is None else "{}/{}".format(*self.share),
            )
        return tuple(taken)


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, *_WRITE), "write", own=_SPARK if streaming else ())
    writer = given.get("writerid")
    if not writer:
        raise ConfigError(
            "the option writerId is missing",
            hint="Name this job's writer: a job keeps its name for life, and no two jobs share one. SQL's INSERT cannot"
            " name it, so write a DataFrame: spark.table(...).write.format('statelog').option('writerId', ...)",
        )
    checkpoint, batch = number(given, "checkpointId"), number(given, "batchId")
    if streaming and (checkpoint is not None or batch is not None):
        raise ConfigError("checkpointId and batchId are for batch writes", hint="A stream numbers its own batches")
    if checkpoint is not None and batch is not None:
        raise ConfigError("checkpointId and batchId exclude each other", hint="Give the one that names your batch")
    if "partitions" in given and "share" in given:
        raise ConfigError("partitions and share exclude each other", hint="Give the one that names this job's part")
    unique, sequence = flag(given, "uniqueKeys"), given.get("sequenceby") or None
    if unique and sequence:
        raise ConfigError(
            "uniqueKeys and sequenceBy exclude each other",
            hint="With uniqueKeys no key comes twice in a batch, so there is nothing to put in sequence",
        )
    return WriteOptions(
        where=log_address(given),
        writer=check_name("writer", writer),
        partitions=numbers(given, "partitions"),
        share=_share(given["share"]) if "share" in given else None,
        unique_keys=unique,
        sequence_by=sequence,
        null_deletes=flag(given, "nullDeletes"),
        take_over=flag(given, "takeOver"),
        take_over_from=given.get("takeoverfrom") or None,
        query_id=given.get("queryid") or None,
        run_id=given.get("runid") or None,
        checkpoint_id=checkpoint,
        batch_id=batch,
        checkpoint_location=given.get("checkpointlocation", ""),
        is_stream=streaming,
    )


def _share(text: str) -> tuple[int, int]:
    """A worker's number, from 0, and the number of workers: "0/3" is the first of three shares."""
    worker, slash, workers = text.partition("/")
    if not (slash and worker.isdecimal() and workers.isdecimal() and int(worker) < int(workers)):
        raise ConfigError(
            f"the option share is {text!r}",
            hint="Give a worker's number, from 0, and how many there are: 0/3, 1/3 and 2/3 are a whole",
        )
    return int(worker), int(workers)
