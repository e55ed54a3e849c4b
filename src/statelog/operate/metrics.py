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


_OF_LOG, _OF_WRITER, _OF_PARTITION = ("log",), ("log", "writer"), ("log", "partition")
_OF_REQUEST = ("log", "port", "operation")


def _count(text: str, *labels: str) -> Metric:
    return Metric(Kind.COUNTER, labels, text)


def _gauge(text: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, labels, text)


def _times(text: str, *labels: str) -> Metric:
    return Metric(Kind.HISTOGRAM, labels, text)


REQUESTS = {
    "statelog_request_seconds": _times("Time that a request to Kafka or to the store took", "port", "operation"),
    "statelog_requests_total": _count("Requests, by the log that they were made for", *_OF_REQUEST),
    "statelog_request_bytes_total": _count("Bytes that those requests moved, in either direction", *_OF_REQUEST),
    "statelog_request_errors_total": _count("Requests that failed", *_OF_REQUEST, "error"),
}
STEPS = {
    "open": _times("Time to open a log", *_OF_LOG),
    "table_open": _times("Time to open a table, recovery included", *_OF_LOG),
    "commit": _times("Time from sending a commit to knowing its outcome", *_OF_LOG),
    "round": _times("Duration of a round", *_OF_LOG),
    "drill": _times("Duration of a drill: two restores and their comparison", *_OF_LOG),
    "recovery": _times("Duration of a recovery into one target", *_OF_LOG),
}
"""By the name of the step; the metric is `statelog_STEP_seconds`."""
TOLD: dict[str, Metric] = {
    **REQUESTS,
    **{f"statelog_{name}_seconds": metric for name, metric in STEPS.items()},
    "statelog_step_errors_total": _count("Steps that failed", "log", "step", "error"),
    "statelog_commit_changes_total": _count("Changes that commits made visible", *_OF_LOG),
    "statelog_commit_bytes_total": _count("Size of those changes, as sent to Kafka", *_OF_LOG),
}
"""What an observer is told of, and counts."""
OTHERS = {
    "statelog_recovery_last_seconds": _gauge("Duration of the most recent recovery", *_OF_LOG),
    "statelog_recovery_progress_ratio": _gauge("Progress of a recovery, or of a table that is being opened", *_OF_LOG),
    "statelog_recovery_left_seconds": _gauge("Estimated time until it is done", *_OF_LOG),
    "statelog_disk_free_bytes": _gauge("Free space where runs are written before they are uploaded", "path"),
    "statelog_disk_bytes": _gauge("Size of that disk", "path"),
}
OF_ROUNDS = {
    "statelog_rounds_total": _count("Rounds, by how they ended: completed, skipped, lost or failed", "log", "outcome"),
    "statelog_set_aside": _gauge("1 while an error keeps a daemon of several logs from working on this one", *_OF_LOG),
    "statelog_round_failures_in_a_row": _gauge("Failed rounds since the last one that ended well", *_OF_LOG),
    "statelog_rounds_hanging": _gauge("Rounds that were given up but have not ended yet", *_OF_LOG),
    "statelog_round_silent_seconds": _gauge("Time since the running round last reached a step", *_OF_LOG),
    "statelog_loop_late_seconds": _gauge("How late the daemon's loop is", *_OF_LOG),
    "statelog_rounds_unpublished_total": _count("Rounds whose position could not be published for lag tools", *_OF_LOG),
    "statelog_rolled_up_commits_total": _count("Commits that rounds have put into snapshots", *_OF_LOG),
    "statelog_rolled_up_changes_total": _count("Changes in those commits", *_OF_LOG),
    "statelog_uploaded_bytes_total": _count("Bytes of runs that rounds have uploaded", *_OF_LOG),
    "statelog_manifest_number": _gauge("Number of the newest manifest known", *_OF_LOG),
    "statelog_manifest_position": _gauge("Ledger position of that manifest", *_OF_LOG),
    "statelog_uncovered_age_seconds": _gauge("Age of the oldest commit that is not in a snapshot yet", *_OF_LOG),
    "statelog_uncovered_commits": _gauge("Commits that are not in a snapshot yet", *_OF_LOG),
    "statelog_uncovered_changes": _gauge("Changes in those commits", *_OF_LOG),
    "statelog_uncovered_bytes": _gauge("Size of those commits", *_OF_LOG),
    "statelog_snapshot_bytes": _gauge("Size of the newest snapshot", *_OF_LOG),
    "statelog_restore_estimate_seconds": _gauge(
        "Estimated time to restore, at the rates of recent rounds: `snapshot` and `tail`", "log", "part"
    ),
    "statelog_truncation_held": _gauge(
        "1 for the manifest, lease or subscription that holds truncation back", "log", "by"
    ),
    "statelog_cleanup_held_back": _gauge("1 if the last round removed nothing because something is wrong", *_OF_LOG),
    "statelog_records_left": _gauge("Offsets of the data topic between log start and log end", *_OF_LOG),
    "statelog_records_overdue": _gauge("Offsets of those that should have been truncated", *_OF_LOG),
    "statelog_oldest_need_age_seconds": _gauge(
        "Age of the oldest record still needed, where Kafka deletes by age", *_OF_LOG
    ),
}
OF_WRITERS = {
    "statelog_writer_changes_total": _count("Changes appended", *_OF_WRITER),
    "statelog_writer_buffered_changes": _gauge("Changes waiting in memory", *_OF_WRITER),
    "statelog_writer_chunks_total": _count("Chunks sent", *_OF_WRITER),
    "statelog_writer_chunk_bytes_total": _count("Size of those chunks", *_OF_WRITER),
    "statelog_writer_chunk_failures_total": _count("Chunks that failed, or whose outcome is unknown", *_OF_WRITER),
    "statelog_writer_in_flight_bytes": _gauge("Size of the chunks that Kafka has not acknowledged yet", *_OF_WRITER),
    "statelog_writer_blocked_seconds_total": _count("Time spent waiting for room in flight", *_OF_WRITER),
    "statelog_writer_persist_seconds_total": _count("Time spent making checkpoints durable", *_OF_WRITER),
    "statelog_writer_commits_total": _count("Commits that count", *_OF_WRITER),
    "statelog_writer_commit_failures_total": _count("Commits that do not count, or may not", *_OF_WRITER),
}
OF_TABLES = {
    "statelog_table_position": _gauge("Ledger position of a table's state", *_OF_WRITER),
    "statelog_table_changes_total": _count("Changes made to a table", *_OF_WRITER),
    "statelog_table_local": _gauge(
        "1 once all of the state is local, 0 while part of it is still in a snapshot", *_OF_WRITER
    ),
    "statelog_table_open_rows": _gauge("Changes read on opening, beyond what the local directory had", *_OF_WRITER),
    "statelog_worker_partitions": _gauge("Partitions of the input that a worker owns", *_OF_LOG),
    "statelog_worker_tables": _gauge("Those of them whose table is open", *_OF_LOG),
    "statelog_worker_lag_records": _gauge("Records of the input that are not processed yet", *_OF_PARTITION),
    "statelog_worker_commit_age_seconds": _gauge("Time since the last commit of this partition", *_OF_PARTITION),
    "statelog_worker_standbys": _gauge("Standbys that a worker has open", *_OF_LOG),
    "statelog_standby_position": _gauge("Ledger position of a standby's state", *_OF_WRITER),
    "statelog_standby_age_seconds": _gauge("Time since a standby was last known to have caught up", *_OF_WRITER),
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
    found = worker.statistics()
    are_open = [one for one in found if one.commit_age_s is not None]
    counts = {"partitions": len(found), "tables": len(are_open), "standbys": len(worker.standbys)}
    yield from _named({f"worker_{name}": count for name, count in counts.items()}, log)
    for partition, lag, age_s in found:
        values = {"worker_lag_records": lag, "worker_commit_age_seconds": age_s}
        yield from _named({name: one for name, one in values.items() if one is not None}, log, str(partition))


def _named(values: dict[str, float], *labels: str) -> Iterator[Sample]:
    for name, value in values.items():
        yield Sample(f"statelog_{name}", labels, value)
