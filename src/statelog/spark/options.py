"""Options of `format("statelog")` by use: a state, changes, a view, a stream of changes, a write. Pure.

Checked once, as frozen values. An option has the same rule in every use.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from statelog.errors import ConfigError
from statelog.reading import At, AtCheckpoint, AtPosition, AtTime
from statelog.schemas.key_groups import ranges_text, share
from statelog.schemas.names import check_name, whole_in
from statelog.spark.option_texts import (
    LogAddress,
    flag,
    key_texts,
    listed,
    log_address,
    lowered,
    number,
    numbers,
    refuse_unknown,
)

COMMON = ("log", "path", "root", "allowUnsafe")
"""The options of every use."""
LEASE_S = 300
"""How long a planned read is held, by default, for tasks that have not started."""
_STREAM_LEASE_S = 3600
_CLOCKS_APART_S = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = (*COMMON, "read", "keyGroups", "minPartitions", "columns", "includeDue", "leaseSeconds")
_STATE = (*_READ, "atPosition", "atWriter", "atCheckpoint", "atTime", "keys", "includeKeyGroup")
_STARTS = ("startingPosition", "startingWriter", "startingCheckpoint", "startingTime")
_ENDS = ("endingPosition", "endingWriter", "endingCheckpoint", "endingTime")
_CHANGES = (*_READ, *_STARTS, *_ENDS)
_STREAM_ONLY = ("maxChangesPerTrigger", "maxBytesPerTrigger", "readerId", "onTruncation")
_STREAM = (*_READ, *_STARTS, *_STREAM_ONLY)
_WRITE = (
    *("writerId", "partitions", "takeOver", "takeOverFrom", "checkpointId", "uniqueKeys", "sequenceBy", "nullDeletes"),
    *("allowGaps", "allowChangedReplay"),
)
_UPSERT = ("queryId", "runId", "batchId")  # Only `upsert` sets these.
_SPARK = ("checkpointLocation", "queryName")  # Spark adds these to the options of a streaming sink.
_CATALOG = ("provider", "owner", "option.log")  # Spark passes these for a table in its catalog, instead of OPTIONS.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of all reads of rows. None means all key groups, all columns, any number of tasks.

    `include_due`: whether rows have the column `due`.
    `lease_s`: how long each scan holds its plan, 0 for no lease.
    """

    where: LogAddress
    key_groups: tuple[int, ...] | None = None
    min_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    include_due: bool = False
    lease_s: int = LEASE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions(ReadOptions):
    """A read of a state, the newest one if `at` is None. `keys` are texts, parsed by the log's key type."""

    keys: tuple[str, ...] | None = None
    at: At | None = None
    include_key_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(ReadOptions):
    """A read of the changes of the commits after `start` and up to `end`; None for all that the log holds."""

    start: At | None = None
    end: At | None = None


class Beginning(StrEnum):
    """Where a new stream begins, if not at a named position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class OnTruncation(StrEnum):
    """Whether a stream whose position was truncated fails, or starts over from a snapshot."""

    FAIL = "fail"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most changes, and bytes of record values, of a micro-batch; `math.inf` for any number."""

    changes: float = math.inf
    size_bytes: float = math.inf


NO_LIMIT = Limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(ReadOptions):
    """A stream of changes.

    `reader`: the id of its subscription, None for a lease, which holds `lease_s` after the last micro-batch began.
    """

    start: Beginning | At
    reader: str | None = None
    limit: Limit = NO_LIMIT
    on_truncation: OnTruncation = OnTruncation.FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write.

    share                 a worker's number, from 0, and the number of workers
    allow_gaps            accept batches that do not follow the last one
    allow_changed_replay  skip a repeated batch even if its rows differ
    run_id                the run of the query
    batch_id              the micro-batch that this batch write is for
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
    allow_gaps: bool = False
    allow_changed_replay: bool = False
    query_id: str | None = None
    run_id: str | None = None
    checkpoint_id: int | None = None
    batch_id: int | None = None
    is_stream: bool = False

    @property
    def serves_query(self) -> bool:
        """Whether this is a write of a streaming query, through its sink or through `upsert`."""
        return self.is_stream or self.batch_id is not None

    @property
    def is_numbered(self) -> bool:
        """Whether a number identifies a repetition of this write."""
        return self.serves_query or self.checkpoint_id is not None

    def taken(self, partitions: int) -> tuple[int, ...]:
        """Return the partitions of a log with so many that this write takes: all, unless the options name some.

        Raises ConfigError if there are none, or the log lacks one.
        """
        taken = range(partitions) if self.partitions is None else self.partitions
        if self.share is not None:
            worker, workers = self.share
            taken = share(partitions, worker=worker, workers=workers)
        if not taken or max(taken) >= partitions:
            raise ConfigError(
                "the option partitions leaves nothing to write, or names a partition that the log lacks",
                hint=f"Name some of the partitions 0:{partitions}; each belongs to one job at a time",
                partitions=None if self.partitions is None else ranges_text(self.partitions),
                share=None if self.share is None else "{}/{}".format(*self.share),
            )
        return tuple(taken)


def read_of(options: Mapping[str, str]) -> str:
    """Return the option `read`, by default `state`. Raises ConfigError for a table of Spark's catalog."""
    given = lowered(options)
    if any(name in given for name in _CATALOG):
        raise ConfigError(
            "a table of Spark's catalog cannot be a log: Spark gives the table's OPTIONS to no Python source",
            hint="Use CREATE TEMPORARY VIEW ... USING statelog OPTIONS (...), or spark.read.format('statelog')",
        )
    return given.get("read", "state").lower()


def state_options(options: Mapping[str, str]) -> StateOptions:
    """Parse the options of a read of a state. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, _STATE, "read of a state")
    return StateOptions(
        **_shared(given, LEASE_S),
        keys=key_texts(given["keys"]) if "keys" in given else None,
        at=_at(given, "at"),
        include_key_group=flag(given, "includeKeyGroup"),
    )


def change_options(options: Mapping[str, str]) -> ChangeOptions:
    """Parse the options of a read of changes. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, _CHANGES, "read of changes")
    return ChangeOptions(
        **_shared(given, LEASE_S),
        start=_at(given, "starting", "earliest"),
        end=_at(given, "ending", "latest"),
    )


def refuse_future(start: At | None, now_s: float) -> None:
    """Raise ConfigError for a time in the future: commits before it would be omitted silently."""
    if isinstance(start, AtTime) and start.timestamp_ms / 1000 > now_s + _CLOCKS_APART_S:
        raise ConfigError(
            f"the option startingTime lies in the future: {start}",
            hint="Give milliseconds since 1970, or ISO 8601 with an offset. To omit commits before that time, filter"
            " the column timestamp. To begin with new commits, give a stream startingPosition=latest",
        )


def view_options(options: Mapping[str, str]) -> LogAddress:
    """Parse the options of a view, which only locate the log. Raises ConfigError that names the option."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, "read"), f"read of {given.get('read')}")
    return log_address(given)


def names_stream(options: Mapping[str, str]) -> bool:
    """Return whether the options can only be those of a stream. Spark asks for columns without naming the use."""
    given = lowered(options)
    if given.get("read", "changes").lower() != "changes":
        return False
    own = {name.lower() for name in (*_STREAM_ONLY, *(() if "read" in given else _STARTS))}
    begins = given.get("startingposition", "").lower()
    return bool(own & given.keys()) or begins in (Beginning.LATEST, Beginning.SNAPSHOT)


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, _STREAM, "stream of changes")
    if given.get("read", "changes").lower() != "changes":
        raise ConfigError(
            f"a stream cannot read {given['read']!r}", hint="Omit the option read: a stream reads changes"
        )
    reader, truncation = given.get("readerid"), given.get("ontruncation", OnTruncation.FAIL).lower()
    if truncation not in list(OnTruncation):
        raise ConfigError(f"the option onTruncation is {truncation!r}", hint="Give fail or snapshot")
    changes, size_bytes = (number(given, f"max{what}PerTrigger", least=1) for what in ("Changes", "Bytes"))
    return StreamOptions(
        **_shared(given, _STREAM_LEASE_S),
        start=_start(given),
        reader=None if reader is None else check_name("reader", reader),
        limit=Limit(changes=changes or math.inf, size_bytes=size_bytes or math.inf),
        on_truncation=OnTruncation(truncation),
    )


def _shared(given: Mapping[str, str], default_lease_s: int) -> dict[str, Any]:
    """Parse the fields of `ReadOptions`."""
    columns, lease_s = listed(given.get("columns", "")), number(given, "leaseSeconds")
    if "columns" in given and not columns:
        raise ConfigError("the option columns is empty", hint="Omit it for all columns")
    return {
        "where": log_address(given),
        "key_groups": numbers(given, "keyGroups"),
        "min_partitions": number(given, "minPartitions", least=1),
        "columns": columns or None,
        "include_due": flag(given, "includeDue"),
        "lease_s": default_lease_s if lease_s is None else lease_s,
    }


def _at(given: Mapping[str, str], side: str, open_word: str | None = None) -> At | None:
    """Parse the options of a side: `at` for a state, `starting` or `ending` for the ends of a range.

    Returns None if none is given, or the position is the `open_word`. Raises ConfigError for contradictions and for
    invalid values.
    """
    position, time = given.get(f"{side}position"), given.get(f"{side}time")
    writer, checkpoint = given.get(f"{side}writer"), number(given, f"{side}Checkpoint")
    options = {f"{side}Position": position, f"{side}Time": time, f"{side}Writer": writer}
    ways = [name for name, text in options.items() if text is not None]
    if len(ways) > 1:
        raise ConfigError(f"the options {' and '.join(ways)} exclude each other", hint="Give one of them")
    if (writer is None) != (checkpoint is None):
        raise ConfigError(
            f"{side}Writer and {side}Checkpoint go together", hint="Name both or neither: a checkpoint is a writer's"
        )
    if writer is not None and checkpoint is not None:
        return AtCheckpoint(writer, checkpoint)
    if time is not None:
        return AtTime(_milliseconds(f"{side}Time", time))
    if position is None or position.lower() == open_word:
        return None
    found = whole_in(position)
    if found is None:
        other = f", or {open_word}" if open_word else ""
        raise ConfigError(
            f"the option {side}Position is {position!r}", hint=f"Give a ledger position, 0 or more{other}"
        )
    return AtPosition(found)


def _milliseconds(name: str, text: str) -> int:
    if (found := whole_in(text)) is not None:
        return found
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time < _EPOCH:
        hint = "Give milliseconds since 1970, or ISO 8601 with an offset: 2026-01-31T12:00:00Z"
        raise ConfigError(f"the option {name} is {text!r}", hint=hint)
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _start(given: Mapping[str, str]) -> Beginning | At:
    word = given.get("startingposition", "").lower()
    words = [one.value for one in Beginning]
    if not any(name.lower() in given for name in _STARTS):
        raise ConfigError(
            "the option startingPosition is missing",
            hint=f"Say where a new stream begins: {', '.join(words)}, or a ledger position; or startingWriter with"
            " startingCheckpoint; or startingTime",
        )
    if word in (Beginning.LATEST, Beginning.SNAPSHOT):
        _at({**given, "startingposition": Beginning.EARLIEST}, "starting", Beginning.EARLIEST)
        return Beginning(word)
    return _at(given, "starting", Beginning.EARLIEST) or Beginning.EARLIEST


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Parse the options of a write. Raises ConfigError that names the option, InvalidName."""
    given = lowered(options)
    refuse_unknown(given, (*COMMON, *_WRITE), "write", own=(*_UPSERT, *_SPARK) if streaming else _UPSERT)
    writer = given.get("writerid")
    if not writer:
        raise ConfigError(
            "the option writerId is missing",
            hint="Name this job's writer: a job never changes its name, and no two jobs share one. In SQL give all"
            " options in INSERT INTO t WITH (log = 'flights', writerId = 'load', ...): Spark hands over none of a"
            " table's OPTIONS",
        )
    checkpoint, batch = number(given, "checkpointId", least=1), number(given, "batchId")
    if streaming and (checkpoint is not None or batch is not None):
        raise ConfigError("checkpointId and batchId are for batch writes", hint="Omit them: a stream numbers batches")
    if checkpoint is not None and batch is not None:
        raise ConfigError("checkpointId and batchId exclude each other", hint="Give the one that names your batch")
    unique, sequence = flag(given, "uniqueKeys"), given.get("sequenceby") or None
    if unique and sequence:
        hint = "Omit one of them: with uniqueKeys no key comes twice in a batch, so there is no sequence"
        raise ConfigError("uniqueKeys and sequenceBy exclude each other", hint=hint)
    is_share = "/" in given.get("partitions", "")
    return WriteOptions(
        where=log_address(given),
        writer=check_name("writer", writer),
        partitions=None if is_share else numbers(given, "partitions"),
        share=_share(given["partitions"]) if is_share else None,
        unique_keys=unique,
        sequence_by=sequence,
        null_deletes=flag(given, "nullDeletes"),
        take_over=flag(given, "takeOver"),
        take_over_from=given.get("takeoverfrom") or None,
        allow_gaps=flag(given, "allowGaps"),
        allow_changed_replay=flag(given, "allowChangedReplay"),
        query_id=given.get("queryid") or None,
        run_id=given.get("runid") or None,
        checkpoint_id=checkpoint,
        batch_id=batch,
        is_stream=streaming,
    )


def _share(text: str) -> tuple[int, int]:
    """Parse a worker's number, from 0, and the number of workers: "0/3" is the first of three shares."""
    worker, workers = map(whole_in, text.split("/", 1))
    if worker is None or workers is None or worker >= workers:
        hint = "Give a worker's number, from 0, and how many there are: 0/3, 1/3 and 2/3 are a whole"
        raise ConfigError(f"the option partitions is {text!r}, which is no share", hint=hint)
    return worker, workers
