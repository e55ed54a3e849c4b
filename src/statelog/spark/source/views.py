"""Views of a log itself, as tables: its snapshots, commits, writers and subscriptions, and how far the snapshots lag.

One view is a schema and a function, named in `VIEWS`; the option `read` takes its name. Times are UTC, sizes bytes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from statelog.errors import NotFound
from statelog.reading.commits import Commits
from statelog.reading.plan import CommitFacts, commit_facts
from statelog.reading.retained_history import RetainedHistory
from statelog.schemas.ledger.place import Place
from statelog.schemas.snapshot.claims import newest_files
from statelog.storage.held_subscription import list_subscriptions
from statelog.storage.ledger_client import ValidCommit
from statelog.storage.log.log import Log

__all__ = ["VIEWS", "View"]

_TIME = pa.timestamp("us", tz="UTC")
_COMMITS_BYTES = 8 << 20


class View(NamedTuple):
    """The columns of a view, and its rows: in tables, up to a ledger position."""

    schema: pa.Schema
    tables: Callable[[Log, int], Iterator[pa.Table]]


_SNAPSHOTS = pa.schema(
    [
        ("number", pa.int64()),
        ("position", pa.int64()),
        ("created", _TIME),
        ("runs", pa.int32()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)
_COMMITS = pa.schema(
    [
        ("writer", pa.string()),
        ("checkpoint", pa.int64()),
        ("position", pa.int64()),
        ("timestamp", _TIME),
        ("changes", pa.int64()),
        ("size_bytes", pa.int64()),
        ("final", pa.bool_()),
        ("metadata", pa.string()),
    ]
)
_WRITERS = pa.schema(
    [
        ("writer", pa.string()),
        ("checkpoint", pa.int64()),
        ("position", pa.int64()),
        ("epoch", pa.int64()),
        ("partitions", pa.list_(pa.int32())),
        ("metadata", pa.string()),
    ]
)
_SUBSCRIPTIONS = pa.schema(
    [
        ("reader", pa.string()),
        ("position", pa.int64()),
        ("holder", pa.string()),
        ("taken_up", pa.bool_()),
        ("created", _TIME),
        ("moved", _TIME),
        ("ended", pa.string()),
        ("problem", pa.string()),
    ]
)
_LAG = pa.schema(
    [
        ("position", pa.int64()),
        ("snapshot", pa.int64()),
        ("snapshot_position", pa.int64()),
        ("commits", pa.int64()),
        ("changes", pa.int64()),
        ("size_bytes", pa.int64()),
        ("since", _TIME),
    ]
)


def _snapshots(log: Log, _: int) -> Iterator[pa.Table]:
    """The kept snapshots, oldest first; `rows` and `size_bytes` are those of their runs."""
    rows: list[dict[str, object]] = []
    for number in log.manifests.numbers():
        try:
            manifest = log.manifests.read(number).manifest
        except NotFound:
            continue  # Superseded and cleaned up since it was listed.
        rows.append(
            {
                "number": number,
                "position": manifest.position,
                "created": int(manifest.created_s * 1_000_000),
                "runs": len(manifest.runs),
                "rows": sum(run.rows for run in manifest.runs),
                "size_bytes": sum(run.size_bytes for run in manifest.runs),
            }
        )
    yield _table(rows, _SNAPSHOTS)


def _commits(log: Log, position: int) -> Iterator[pa.Table]:
    """The valid commits that the log still holds, oldest first. `metadata` is JSON."""
    reach = RetainedHistory(log, None, seen=[Place(position)])
    start = min(reach.oldest_position, position)
    with Commits(log, reach.base_for(start), start) as ledger:
        while ledger.position < position:
            found = ledger.read_to(position, most_bytes=_COMMITS_BYTES)
            yield _table([_commit(log, one) for one in found], _COMMITS)


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


def _writers(log: Log, position: int) -> Iterator[pa.Table]:
    """The writers that have not ended: last commit, newest epoch, and the partitions that are theirs now."""
    reach = RetainedHistory(log, None, seen=[Place(position)])
    with Commits(log, reach.base_for(position), position) as ledger:
        state = ledger.folded.state
    owned = {live.writer: sorted(live.partitions) for live in state.live}
    rows: list[dict[str, object]] = [
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
    yield _table(rows, _WRITERS)


def _subscriptions(log: Log, _: int) -> Iterator[pa.Table]:
    """How the subscription of every reader stands. `ended` says why one holds nothing any more, and `problem` why one
    that holds everything cannot be read; then the rest is null.
    """
    stored = list_subscriptions(log.store)
    rows: list[dict[str, object]] = [
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
    yield _table([{**dict.fromkeys(_SUBSCRIPTIONS.names), **row} for row in rows], _SUBSCRIPTIONS)


def _lag(log: Log, position: int) -> Iterator[pa.Table]:
    """One row: what was committed behind the newest snapshot, and `since` when."""
    stored = log.manifests.newest()
    base = stored.manifest if stored else None
    start = base.position if base else 0
    commits, changes, size_bytes, since = 0, 0, 0, None
    with Commits(log, base, start) as ledger:
        while ledger.position < position:
            for one in ledger.read_to(position, most_bytes=_COMMITS_BYTES):
                facts = _facts(log, one)
                since = _micros(facts.timestamp_ms) if not commits else since
                commits, changes, size_bytes = commits + 1, changes + facts.changes, size_bytes + facts.size_bytes
    row: dict[str, object] = {
        "position": max(position, start),
        "snapshot": stored.manifest.number if stored else None,
        "snapshot_position": start if stored else None,
        "commits": commits,
        "changes": changes,
        "size_bytes": size_bytes,
        "since": since,
    }
    yield _table([row], _LAG)


def _facts(log: Log, one: ValidCommit) -> CommitFacts:
    return commit_facts(one, range(log.descriptor.partitions))


def _micros(timestamp_ms: int) -> int | None:
    return None if timestamp_ms < 0 else timestamp_ms * 1000


def _table(rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    columns = [
        pa.array([row[field.name] for row in rows], pa.int64()).cast(field.type)
        if field.type == _TIME
        else pa.array([row[field.name] for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


VIEWS: Mapping[str, View] = {
    "snapshots": View(_SNAPSHOTS, _snapshots),
    "commits": View(_COMMITS, _commits),
    "writers": View(_WRITERS, _writers),
    "subscriptions": View(_SUBSCRIPTIONS, _subscriptions),
    "lag": View(_LAG, _lag),
}
"""The views by name."""
