"""`foreachBatch(upsert(...))`: writes what a streaming query changed, exactly once per (writer, query, batch).

For update mode, which Spark gives to no Python sink, and which stateful aggregations need. It is a batch write that
carries the batch id; tasks know the query id themselves. So it shares planning, tasks and commit with the streaming
sink, and keeps no client in the driver's process.
"""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statelog.errors import ConfigError
from statelog.schemas.key_groups import ranges_text
from statelog.spark.options import write_options
from statelog.spark.parsing import address_options
from statelog.spark.sink import QUERY_PROPERTY
from statelog.storage import Where

_RUN_PROPERTY = "spark.jobGroup.id"  # The run of a query is its job group, unless the function made one of its own.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROCESS = str(uuid.uuid4())


@dataclass(frozen=True, slots=True, repr=False)
class Upsert:
    """A function for `foreachBatch`, made by `upsert`. Pickles, for Spark Connect."""

    options: tuple[tuple[str, str], ...]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write and commit the micro-batch. An empty one is a commit, too: progress. A second call in the same
        micro-batch with the same writer is Misuse.
        """
        given = {**_caller(batch), **dict(self.options), "batchId": str(batch_id)}
        batch.write.format("statelog").mode("append").options(**given).save()

    def __repr__(self) -> str:
        return f"Upsert({write_options(dict(self.options), streaming=False)!r})"


def upsert(
    name: str,
    where: Where,
    *,
    writer: str,
    unique_keys: bool = False,
    sequence_by: str | None = None,
    null_deletes: bool = False,
    partitions: Sequence[int] | str | None = None,
    take_over: bool = False,
    take_over_from: str | None = None,
    query_id: str | None = None,
) -> Upsert:
    """The function for `foreachBatch`. The DataFrame has the columns of a write: `key`, optional `op`, the value. It is
    one commit for each micro-batch, so a function of your own must call it only once.

    `unique_keys` declares that no key comes twice in a batch, as after an aggregation by key; else `sequence_by` names
    the column whose greatest value in a task decides for a key. `partitions` are this job's, by number or as a share
    (`"0/3"` is the first of three); the rest of the log is left to other jobs. `query_id` names the query where Spark
    does not (Spark Connect). Raises ConfigError, InvalidName; the rest when a batch comes.

        >>> write = upsert("visits", Where.local("/tmp/statelog"), writer="job-1")
        >>> query = counts.writeStream.outputMode("update").foreachBatch(write)  # .start()
    """
    named = {
        "sequenceBy": sequence_by,
        "partitions": partitions if partitions is None or isinstance(partitions, str) else ranges_text(partitions),
        "takeOverFrom": take_over_from,
        "queryId": query_id,
    }
    options = {
        **address_options(name, where),
        "writerId": writer,
        "uniqueKeys": _flag("unique_keys", unique_keys),
        "nullDeletes": _flag("null_deletes", null_deletes),
        "takeOver": _flag("take_over", take_over),
        **{option: text for option, text in named.items() if text is not None},
    }
    write_options(options, streaming=False)
    return Upsert(tuple(options.items()))


def _caller(batch: DataFrame) -> dict[str, str]:
    """The query that calls us and its run, where Spark names them in the driver. With Spark Connect it does not, and a
    process serves one run.
    """
    try:
        context = batch.sparkSession.sparkContext
        query, run = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(_RUN_PROPERTY)
    except PySparkException:
        query, run = None, _PROCESS
    named = {"queryId": query, "runId": run if _UUID.fullmatch(run or "") else None}
    return {name: text for name, text in named.items() if text}


def _flag(name: str, value: object) -> str:
    """As an option. Text is refused, because "false" would be true in Python."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}", hint="Give True or False")
    return "true" if value else "false"
