"""Views of a log itself, as tables: its snapshots, commits, writers and subscriptions, and how far the snapshots lag.

A view is a schema and a function, named in `VIEWS`; the option `read` takes its name. Times are UTC, sizes in bytes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statelog.log import Log
from statelog.reading import CommitFacts, RetainedHistory, commit_facts, list_subscriptions
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.snapshot.claims import newest_files
from statelog.spark.clients import cached_log
from statelog.spark.columns import check_columns, spark_arrow_schema
from statelog.spark.option_texts import LogAddress
from statelog.spark.reported import reported

_PORTION = 1024
_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "ints": pa.list_(pa.int32()),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

Rows = list[dict[str, object]]


class View(NamedTuple):
    """The columns of a view, and its rows, in parts, up to a ledger position. Columns that a row omits are null."""

    schema: pa.Schema
    rows: Callable[[Log, int], Iterator[Rows]]


def _snapshots(log: Log, _: int) -> Iterator[Rows]:
    """Yield the retained snapshots, oldest first; `rows` and `size_bytes` are those of their runs."""
    found = (log.manifests.find(number) for number in log.manifests.numbers())
    yield [
        {
            "number": one.number,
            "position": one.position,
            "created": int(one.created_s * 1_000_000),
            "runs": len(one.runs),
            "rows": sum(run.rows for run in one.runs),
            "size_bytes": sum(run.size_bytes for run in one.runs),
        }
        for one in found
        if one is not None
    ]


def _commits(log: Log, position: int) -> Iterator[Rows]:
    """Yield the valid commits that the log still holds, oldest first. `metadata` is JSON."""
    history = RetainedHistory(log, None, seen=[Place(position)])
    start = min(history.oldest_position, position)
    with log.replay(history.base_for(start), start) as ledger:
        found = ledger.commits(position)
        while portion := list(islice(found, _PORTION)):
            yield [_commit(log, one) for one in portion]


def _commit(log: Log, one: ValidCommit) -> dict[str, object]:
    facts = _facts(log, one)
    return {
        "writer": facts.writer,
        "checkpoint": facts.checkpoint_id,
        "position": facts.position,
        "timestamp": _micros(facts.timestamp_ms),
        "changes": facts.changes,
        "size_bytes": facts.size_bytes,
        "final": one.commit.final,
        "metadata": json.dumps(dict(one.metadata)),
    }


def _writers(log: Log, position: int) -> Iterator[Rows]:
    """Yield the writers that have not ended: last commit, newest epoch, and the partitions that they own now."""
    history = RetainedHistory(log, None, seen=[Place(position)])
    with log.replay(history.base_for(position), position) as ledger:
        state = ledger.folded.state
    owned = {live.writer: sorted(live.partitions) for live in state.live}
    yield [
        {
            "writer": row.name,
            "checkpoint": row.checkpoint.id,
            "position": row.commit_offset + 1,
            "epoch": row.newest_epoch,
            "partitions": owned.get(row.name, []),
            "metadata": json.dumps(dict(row.metadata)),
        }
        for row in state.writers
    ]


def _subscriptions(log: Log, _: int) -> Iterator[Rows]:
    """Yield the subscription of every reader.

    `ended` says why a subscription holds nothing any more, `problem` why an unreadable one holds everything. With a
    `problem` the rest is null.
    """
    stored = list_subscriptions(log.store)
    rows: Rows = [
        {
            "reader": one.reader,
            "position": one.position,
            "holder": one.holder,
            "taken_up": one.is_taken_up,
            "created": int(one.created_s * 1_000_000),
            "moved": int(one.moved_s * 1_000_000),
            "ended": one.ended or None,
        }
        for one, _ in newest_files(stored.files).values()
    ]
    rows.extend({"reader": one.reader, "problem": one.problem} for one in stored.unreadable)
    yield rows


def _lag(log: Log, position: int) -> Iterator[Rows]:
    """Yield one row about the commits after the newest snapshot; `since` is the time of the first."""
    base = log.manifests.newest()
    start = base.position if base else 0
    commits, changes, size_bytes, since = 0, 0, 0, None
    with log.replay(base, start) as ledger:
        for one in ledger.commits(position):
            facts = _facts(log, one)
            since = _micros(facts.timestamp_ms) if not commits else since
            commits, changes, size_bytes = commits + 1, changes + facts.changes, size_bytes + facts.size_bytes
    yield [
        {
            "position": max(position, start),
            "snapshot": base.number if base else None,
            "snapshot_position": start if base else None,
            "commits": commits,
            "changes": changes,
            "size_bytes": size_bytes,
            "since": since,
        }
    ]


def _facts(log: Log, one: ValidCommit) -> CommitFacts:
    return commit_facts(one, range(log.descriptor.partitions))


def _micros(timestamp_ms: int) -> int | None:
    return None if timestamp_ms < 0 else timestamp_ms * 1000


def _view(rows: Callable[[Log, int], Iterator[Rows]], columns: str) -> View:
    """Make a view with these columns: names and types, as in SQL."""
    split = (column.split() for column in columns.split(","))
    return View(pa.schema([(name, _TYPES[kind]) for name, kind in split]), rows)


VIEWS: Mapping[str, View] = {
    "snapshots": _view(
        _snapshots, "number long, position long, created timestamp, runs int, rows long, size_bytes long"
    ),
    "commits": _view(
        _commits,
        "writer string, checkpoint long, position long, timestamp timestamp, changes long, size_bytes long,"
        " final boolean, metadata string",
    ),
    "writers": _view(
        _writers, "writer string, checkpoint long, position long, epoch long, partitions ints, metadata string"
    ),
    "subscriptions": _view(
        _subscriptions,
        "reader string, position long, holder string, taken_up boolean, created timestamp, moved timestamp,"
        " ended string, problem string",
    ),
    "lag": _view(
        _lag,
        "position long, snapshot long, snapshot_position long, commits long, changes long, size_bytes long,"
        " since timestamp",
    ),
}
"""The views by name."""


def view_columns(view: str) -> StructType:
    """Return the columns of a view."""
    return from_arrow_schema(VIEWS[view].schema)


class ViewReader(DataSourceReader):
    """Spark's view of a view: read by one task, up to a ledger position of the log with this identity."""

    @reported()
    def __init__(self, where: LogAddress, schema: StructType, view: str, identity: LogIdentity, position: int) -> None:
        self._where, self._view, self._identity, self._position = where, view, identity, position
        check_columns(schema, view_columns(view), "the view")
        self._schema = spark_arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, whatever there is to read."""
        return [InputPartition(self._view)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # Spark's signature
        """Yield the rows. Raises Damaged, Unavailable."""
        with reported():
            view = VIEWS[self._view]
            for rows in view.rows(cached_log(self._where, self._identity), self._position):
                yield from pa.Table.from_pylist(rows, view.schema).cast(self._schema).to_batches()
