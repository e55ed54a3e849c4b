"""What can be measured, by the names that Prometheus sees, and how the statistics of the code become samples. Pure.

`docs/metrics.md` has the same table. Counters end in `_total`, and all others in their unit; times are in seconds.

Invariant: nothing is counted here. A sample is a field of some statistics that the code keeps anyway, by another name.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from statelog.materializer import Materializer
from statelog.materializer.fleet import Fleet
from statelog.producer import Writer
from statelog.tables import Standby, Table, Worker


class Kind(StrEnum):
    """How Prometheus reads it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """What is measured: its labels, and what it says in a sentence."""

    kind: Kind
    labels: tuple[str, ...]
    text: str


_OF_LOG, _OF_WRITER = ("log",), ("log", "writer")
_OF_REQUEST = ("log", "port", "operation")


def _count(text: str, *labels: str) -> Metric:
    return Metric(Kind.COUNTER, labels, text)


def _gauge(text: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, labels, text)


def _times(text: str, *labels: str) -> Metric:
    return Metric(Kind.HISTOGRAM, labels, text)


REQUESTS = {
    "statelog_request_seconds": _times("How long requests of a port took", "port", "operation"),
    "statelog_requests_total": _count("Requests, by the log that they were made for", *_OF_REQUEST),
    "statelog_request_bytes_total": _count("Bytes that they moved, either way", *_OF_REQUEST),
    "statelog_request_errors_total": _count("Those that ended with an error", *_OF_REQUEST, "error"),
}
STEPS = {
    "open": _times("Opening a log", *_OF_LOG),
    "table_open": _times("Opening a table, with its recovery", *_OF_LOG),
    "commit": _times("A commit, from its send to its outcome", *_OF_LOG),
    "round": _times("A round", *_OF_LOG),
    "drill": _times("A drill: a restore by two ways, and their comparison", *_OF_LOG),
    "recovery": _times("Filling one target: a restore, as it was measured", *_OF_LOG),
}
"""By the name of the step; the metric is `statelog_STEP_seconds`."""
TOLD: dict[str, Metric] = {
    **REQUESTS,
    **{f"statelog_{name}_seconds": metric for name, metric in STEPS.items()},
    "statelog_step_errors_total": _count("Steps that ended with an error", "log", "step", "error"),
    "statelog_commit_changes_total": _count("Changes that commits made visible", *_OF_LOG),
    "statelog_commit_bytes_total": _count("Bytes of these, as they were sent", *_OF_LOG),
}
"""What an observer is told of, and counts."""
OTHERS = {
    "statelog_recovery_last_seconds": _gauge("The last target that was filled: the measured restore", *_OF_LOG),
    "statelog_recovery_progress_ratio": _gauge("How far a recovery, or a table that opens, is", *_OF_LOG),
    "statelog_recovery_left_seconds": _gauge("Its estimated rest", *_OF_LOG),
    "statelog_disk_free_bytes": _gauge("Free space where runs are written before they are uploaded", "path"),
    "statelog_disk_bytes": _gauge("The size of that disk", "path"),
}
OF_ROUNDS = {
    "statelog_rounds_total": _count("Rounds that ended, as completed, skipped, lost or failed", "log", "outcome"),
    "statelog_set_aside": _gauge("1 while one of several logs has no rounds, because of an error", *_OF_LOG),
    "statelog_round_failures_in_a_row": _gauge("Rounds that failed since the last one that ended well", *_OF_LOG),
    "statelog_rounds_hanging": _gauge("Rounds that were given up and have not ended yet", *_OF_LOG),
    "statelog_round_silent_seconds": _gauge("Since the round in flight reached its last step", *_OF_LOG),
    "statelog_loop_late_seconds": _gauge("Since the daemon's loop should have turned", *_OF_LOG),
    "statelog_rounds_unpublished_total": _count("Rounds whose position lag tools do not see", *_OF_LOG),
    "statelog_rolled_up_commits_total": _count("Commits that rounds put into snapshots", *_OF_LOG),
    "statelog_rolled_up_changes_total": _count("Changes in these", *_OF_LOG),
    "statelog_uploaded_bytes_total": _count("Bytes of runs that rounds uploaded", *_OF_LOG),
    "statelog_manifest_number": _gauge("The newest manifest that is known", *_OF_LOG),
    "statelog_manifest_position": _gauge("The ledger position of that", *_OF_LOG),
    "statelog_uncovered_age_seconds": _gauge("The age of the oldest commit that is in no snapshot", *_OF_LOG),
    "statelog_uncovered_commits": _gauge("Commits that are in no snapshot", *_OF_LOG),
    "statelog_uncovered_changes": _gauge("Changes in these", *_OF_LOG),
    "statelog_uncovered_bytes": _gauge("Bytes of these", *_OF_LOG),
    "statelog_snapshot_bytes": _gauge("Bytes of the newest snapshot's runs", *_OF_LOG),
    "statelog_restore_estimate_seconds": _gauge("A restore, by the rates of rounds: `snapshot`, `tail`", "log", "part"),
    "statelog_truncation_held": _gauge("1: the manifest, lease or subscription that truncation waits for", "log", "by"),
    "statelog_cleanup_held_back": _gauge("1 if the last round removed nothing because something is wrong", *_OF_LOG),
    "statelog_records_left": _gauge("Offsets of the data topic between log start and log end", *_OF_LOG),
    "statelog_records_overdue": _gauge("Offsets of these that should be truncated", *_OF_LOG),
    "statelog_oldest_need_age_seconds": _gauge("The oldest record that is needed where Kafka deletes by age", *_OF_LOG),
}
OF_WRITERS = {
    "statelog_writer_changes_total": _count("Changes that were appended", *_OF_WRITER),
    "statelog_writer_buffered_changes": _gauge("Changes that wait in memory", *_OF_WRITER),
    "statelog_writer_chunks_total": _count("Chunks that were sent", *_OF_WRITER),
    "statelog_writer_chunk_bytes_total": _count("Their bytes", *_OF_WRITER),
    "statelog_writer_chunk_failures_total": _count("Chunks that failed, or whose outcome is unknown", *_OF_WRITER),
    "statelog_writer_in_flight_bytes": _gauge("Chunks without an answer", *_OF_WRITER),
    "statelog_writer_blocked_seconds_total": _count("Waits for room in flight", *_OF_WRITER),
    "statelog_writer_persist_seconds_total": _count("Making checkpoints durable", *_OF_WRITER),
    "statelog_writer_commits_total": _count("Commits that count", *_OF_WRITER),
    "statelog_writer_commit_failures_total": _count("Commits that do not, or perhaps not", *_OF_WRITER),
}
OF_TABLES = {
    "statelog_table_position": _gauge("The ledger position of a table's state", *_OF_WRITER),
    "statelog_table_changes_total": _count("Changes of a table", *_OF_WRITER),
    "statelog_table_local": _gauge("1 once all of the state is local, 0 while some is in a snapshot", *_OF_WRITER),
    "statelog_table_open_rows": _gauge("Changes that opening read behind the local directory", *_OF_WRITER),
    "statelog_worker_tables": _gauge("Tables that a worker has open: of so many partitions", *_OF_LOG),
    "statelog_worker_standbys": _gauge("Standbys that a worker has open", *_OF_LOG),
    "statelog_standby_position": _gauge("The ledger position of a standby's state", *_OF_WRITER),
    "statelog_standby_age_seconds": _gauge("Since it was last known to be level with the ledger's end", *_OF_WRITER),
}
METRICS: dict[str, Metric] = {
    **TOLD,
    **OTHERS,
    **OF_ROUNDS,
    **OF_WRITERS,
    **OF_TABLES,
}
"""All of them, by name."""


class Sample(NamedTuple):
    """One value of a metric, and those of its labels, in their order."""

    metric: str
    labels: tuple[str, ...]
    value: float


def of_rounds(log: str, _name: str, daemon: Materializer) -> Iterator[Sample]:
    """Of a materializer, as it is now."""
    found = daemon.statistics()
    for outcome in ("completed", "skipped", "lost", "failed"):
        yield Sample("statelog_rounds_total", (log, outcome), getattr(found, outcome))
    values: dict[str, float] = {
        "round_failures_in_a_row": found.failures_in_a_row,
        "rounds_hanging": found.hanging,
        "round_silent_seconds": found.silent_s,
        "loop_late_seconds": found.late_s,
        "rounds_unpublished_total": found.unpublished,
        "rolled_up_commits_total": found.commits,
        "rolled_up_changes_total": found.changes,
        "uploaded_bytes_total": found.size_bytes,
        "manifest_number": found.number,
        "manifest_position": found.position,
        "uncovered_age_seconds": found.age_s,
    }
    if (tail := found.tail) is not None:
        values |= {
            "uncovered_commits": tail.commits,
            "uncovered_changes": tail.changes,
            "uncovered_bytes": tail.size_bytes,
            "snapshot_bytes": tail.snapshot_bytes,
        }
    if (restore := found.restore) is not None:
        yield Sample("statelog_restore_estimate_seconds", (log, "snapshot"), restore.snapshot_s)
        yield Sample("statelog_restore_estimate_seconds", (log, "tail"), restore.tail_s)
    if (cleanup := found.cleanup) is not None:
        values |= {"records_left": cleanup.records_left, "records_overdue": cleanup.records_overdue}
        if cleanup.oldest_need is not None:
            values["oldest_need_age_seconds"] = cleanup.oldest_need.age_s
        values["cleanup_held_back"] = bool(cleanup.held_back)
        if held := cleanup.held_by:
            # Whose lease or subscription it is, is worth a series; which manifest it is, is not.
            yield Sample("statelog_truncation_held", (log, "manifest" if held.startswith("manifest ") else held), 1)
    yield from _named(values, log)


def of_fleet(_log: str, _name: str, fleet: Fleet) -> Iterator[Sample]:
    """Of the daemons of many logs, each of which is asked for itself while it has one."""
    for state in fleet.states():
        yield Sample("statelog_set_aside", (state.log,), bool(state.problem))


def of_writer(log: str, name: str, writer: Writer) -> Iterator[Sample]:
    """Of a writer, as it is now."""
    found = writer.statistics()
    values: dict[str, float] = {
        "changes_total": found.changes,
        "buffered_changes": found.buffered_changes,
        "chunks_total": found.chunk_bytes.count,
        "chunk_bytes_total": found.chunk_bytes.total,
        "chunk_failures_total": found.failed_chunks,
        "in_flight_bytes": found.in_flight_bytes,
        "blocked_seconds_total": found.blocked_s.total,
        "persist_seconds_total": found.persist_s.total,
        "commits_total": found.confirm_s.count,
        "commit_failures_total": found.confirm_failures,
    }
    return _named({f"writer_{name}": value for name, value in values.items()}, log, name)


def of_table(log: str, name: str, table: Table[Any, Any]) -> Iterator[Sample]:
    """Of a table, as it is now; from any thread."""
    values: dict[str, float] = {
        "table_position": table.position,
        "table_changes_total": table.changes,
        "table_local": table.is_local,
        "table_open_rows": table.opening.rows_read,
    }
    return _named(values, log, name)


def of_standby(log: str, name: str, standby: Standby[Any, Any]) -> Iterator[Sample]:
    """Of a standby, as it is now."""
    return _named({"standby_position": standby.position, "standby_age_seconds": standby.age_s}, log, name)


def of_worker(log: str, _name: str, worker: Worker[Any, Any]) -> Iterator[Sample]:
    """Of a worker, as it is now; its tables and standbys have series of their own."""
    return _named({"worker_tables": len(worker.partitions), "worker_standbys": len(worker.standbys)}, log)


def _named(values: dict[str, float], *labels: str) -> Iterator[Sample]:
    for name, value in values.items():
        yield Sample(f"statelog_{name}", labels, value)
