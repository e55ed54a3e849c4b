"""All metrics by their names in Prometheus, and the samples that statistics yield. Pure.

`docs/metrics.md` has the same table. Counters end in `_total`, all other names in their unit; times are in seconds.

Invariant: nothing is counted here. A sample is a field of existing statistics under another name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, cast

from statelog.materializer import Materializer
from statelog.materializer.fleet import Fleet
from statelog.materializer.statistics import MaterializerStatistics
from statelog.producer import Writer
from statelog.tables import Standby, Table, Worker


class Kind(StrEnum):
    """The type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric: its labels, its description, and how it is `read` from an object's statistics.

    `read` returns None for no sample; a mapping has a sample for each value of the last label.
    """

    kind: Kind
    labels: tuple[str, ...]
    text: str
    read: Callable[[Any], float | Mapping[str, float] | None] = lambda _: None


def _asked(
    labels: tuple[str, ...],
    rows: Mapping[str, tuple[str, str | Callable[[Any], Mapping[str, float]], *tuple[str, ...]]],
) -> dict[str, Metric]:
    """Return metrics by name. A row has the text, the field to read, and more labels."""
    found: dict[str, Metric] = {}
    for name, (text, of, *more) in rows.items():
        kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
        found[f"statelog_{name}"] = Metric(kind, (*labels, *more), text, _field(of) if isinstance(of, str) else of)
    return found


def _field(path: str) -> Callable[[Any], float | None]:
    """Return a function that reads a field such as `tail.commits`; None if a field on the way is None."""

    def read(found: Any) -> float | None:
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return cast("float | None", found)

    return read


def _ended(found: MaterializerStatistics) -> dict[str, float]:
    return {one: getattr(found, one) for one in ("completed", "skipped", "lost", "failed")}


def _restore(found: MaterializerStatistics) -> dict[str, float]:
    restore = found.restore
    return {} if restore is None else {"snapshot": restore.snapshot_s, "tail": restore.tail_s}


def _held(found: MaterializerStatistics) -> dict[str, float]:
    """Label each lease and subscription by name, and all manifests alike: a manifest's number is no series."""
    by = found.cleanup.held_by if found.cleanup else ""
    return {"manifest" if by.startswith("manifest ") else by: 1} if by else {}


def _named(labels: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, Metric]:
    kinds = {name: Kind.COUNTER if name.endswith("_total") else Kind.HISTOGRAM for name in texts}
    return {f"statelog_{name}": Metric(kinds[name], labels, text) for name, text in texts.items()}


_OF_LOG, _OF_REQUEST, _OF_WRITER = ("log",), ("log", "port", "operation"), ("log", "writer")
OBSERVED: dict[str, Metric] = {
    **_named(("port", "operation"), {"request_seconds": "Time that a request to Kafka or to the store took"}),
    **_named(
        _OF_REQUEST,
        {
            "requests_total": "Requests, by the log that they were made for",
            "request_bytes_total": "Bytes that those requests moved, in either direction",
        },
    ),
    **_named((*_OF_REQUEST, "error"), {"request_errors_total": "Requests that failed"}),
    **_named(
        _OF_LOG,
        {
            "open_seconds": "Time to open a log",
            "table_open_seconds": "Time to open a table, recovery included",
            "commit_seconds": "Time from sending a commit to knowing its outcome",
            "round_seconds": "Duration of a round",
            "drill_seconds": "Duration of a drill: two restores and their comparison",
            "recovery_seconds": "Duration of a recovery into one target",
            "commit_changes_total": "Changes that commits made visible",
            "commit_bytes_total": "Size of those changes, as sent to Kafka",
        },
    ),
    **_named(("log", "step", "error"), {"step_errors_total": "Steps that failed"}),
}
"""The metrics that an observer counts: a step is `statelog_STEP_seconds`."""
OTHERS = {
    f"statelog_{name}": Metric(Kind.GAUGE, labels, text)
    for name, text, labels in (
        ("recovery_last_seconds", "Duration of the most recent recovery", _OF_LOG),
        ("recovery_progress_ratio", "Progress of a recovery, or of a table that is being opened", _OF_LOG),
        ("recovery_left_seconds", "Estimated time until it is done", _OF_LOG),
        ("disk_free_bytes", "Free space where runs are written before they are uploaded", ("path",)),
        ("disk_bytes", "Size of that disk", ("path",)),
    )
}
OF_ROUNDS = _asked(
    _OF_LOG,
    {
        "rounds_total": ("Rounds, by how they ended: completed, skipped, lost or failed", _ended, "outcome"),
        "round_failures_in_a_row": ("Failed rounds since the last one that ended well", "failures_in_a_row"),
        "rounds_hanging": ("Rounds that were given up but have not ended yet", "hanging"),
        "round_silent_seconds": ("Time since the running round last reached a step", "silent_s"),
        "loop_late_seconds": ("How late the daemon's loop is", "late_s"),
        "rounds_unpublished_total": ("Rounds whose position could not be published for lag tools", "unpublished"),
        "rolled_up_commits_total": ("Commits that rounds have put into snapshots", "commits"),
        "rolled_up_changes_total": ("Changes in those commits", "changes"),
        "uploaded_bytes_total": ("Bytes of runs that rounds have uploaded", "size_bytes"),
        "manifest_number": ("Number of the newest manifest known", "number"),
        "manifest_position": ("Ledger position of that manifest", "position"),
        "uncovered_age_seconds": ("Age of the oldest commit that is not in a snapshot yet", "age_s"),
        "uncovered_commits": ("Commits that are not in a snapshot yet", "tail.commits"),
        "uncovered_changes": ("Changes in those commits", "tail.changes"),
        "uncovered_bytes": ("Size of those commits", "tail.size_bytes"),
        "snapshot_bytes": ("Size of the newest snapshot", "tail.snapshot_bytes"),
        "restore_estimate_seconds": (
            "Estimated time to restore, at the rates of recent rounds: `snapshot` and `tail`", _restore, "part",
        ),
        "truncation_held": ("1 for the manifest, lease or subscription that holds truncation back", _held, "by"),
        "cleanup_held_back": ("1 if the last round removed nothing because something is wrong", "cleanup.held_back"),
        "topics_delete": ("1 if Kafka deletes what is committed, by settings that somebody changed", "deletions"),
        "records_left": ("Offsets of the data topic between log start and log end", "cleanup.records_left"),
        "records_overdue": ("Offsets of those that should have been truncated", "cleanup.records_overdue"),
        "oldest_need_age_seconds": (
            "Age of the oldest record still needed, where Kafka deletes by age", "cleanup.oldest_need.age_s",
        ),
    },
)  # fmt: skip
OF_FLEETS = _asked(
    _OF_LOG, {"set_aside": ("1 while an error keeps a daemon of several logs from working on this one", "problem")}
)
OF_WRITERS = _asked(
    _OF_WRITER,
    {
        "writer_changes_total": ("Changes appended", "changes"),
        "writer_buffered_changes": ("Changes waiting in memory", "buffered_changes"),
        "writer_messages_total": ("Messages sent with commits, those that wait included", "messages"),
        "writer_chunks_total": ("Chunks sent", "chunk_bytes.count"),
        "writer_chunk_bytes_total": ("Size of those chunks", "chunk_bytes.total"),
        "writer_chunk_failures_total": ("Chunks that failed, or whose outcome is unknown", "failed_chunks"),
        "writer_in_flight_bytes": ("Size of the chunks that Kafka has not acknowledged yet", "in_flight_bytes"),
        "writer_blocked_seconds_total": ("Time spent waiting for room in flight", "blocked_s.total"),
        "writer_persist_seconds_total": ("Time spent making checkpoints durable", "persist_s.total"),
        "writer_commits_total": ("Commits that count", "confirm_s.count"),
        "writer_carried_commits_total": ("Those of them that carried their changes, as one record", "carried_commits"),
        "writer_commit_failures_total": ("Commits that do not count, or may not", "confirm_failures"),
    },
)
OF_TABLES = _asked(
    _OF_WRITER,
    {
        "table_position": ("Ledger position of a table's state", "position"),
        "table_changes_total": ("Changes made to a table", "changes"),
        "table_local": ("1 once all of the state is local, 0 while part of it is still in a snapshot", "is_local"),
        "table_overdue_seconds": ("Time since the oldest row is due that is still there; 0 if none is", "overdue_s"),
        "table_open_rows": (
            "Rows read before a table opened: all, or what its directory lacked",
            "opening.rows_read",
        ),
        "table_unpublished_messages": ("Messages of its commits that are not published yet", "unpublished_messages"),
        "table_unpublished_seconds": ("Age of the oldest commit with such messages", "unpublished_s"),
    },
)
OF_WORKERS = _asked(
    _OF_LOG,
    {
        "worker_partitions": ("Partitions of the input that a worker owns", "partitions"),
        "worker_tables": ("Those of them whose table is open", "tables"),
        "worker_standbys": ("Standbys that a worker has open", "standbys"),
    },
)
OF_PARTITIONS = _asked(
    ("log", "partition"),
    {
        "worker_lag_records": ("Records of the input that are not processed yet", "lag"),
        "worker_commit_age_seconds": ("Time since the last commit of this partition", "commit_age_s"),
        "worker_overdue_seconds": (
            "Time since the oldest row of this partition is due that is still there; 0 if none is",
            "overdue_s",
        ),
    },
)
OF_STANDBYS = _asked(
    _OF_WRITER,
    {
        "standby_position": ("Ledger position of a standby's state", "position"),
        "standby_age_seconds": ("Time since a standby was last known to have caught up", "age_s"),
    },
)
METRICS: dict[str, Metric] = (
    OBSERVED | OTHERS | OF_ROUNDS | OF_FLEETS | OF_WRITERS | OF_TABLES | OF_WORKERS | OF_PARTITIONS | OF_STANDBYS
)
"""All metrics by name."""


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels in order."""

    metric: str
    labels: tuple[str, ...]
    value: float


def samples_of(thing: object, log: str, name: str) -> Iterator[Sample]:
    """Yield the current samples of an object, from any thread. Raises ClosedError if it was closed meanwhile."""
    for kind, samples in _ASKED.items():
        if isinstance(thing, kind):
            yield from samples(thing, log, name)


def _of_worker(worker: Any, log: str, _: str) -> Iterator[Sample]:
    """Yield the samples of a worker; its tables and standbys have series of their own."""
    found = worker.statistics()
    tables = sum(one.commit_age_s is not None for one in found)
    for metric, value in zip(OF_WORKERS, (len(found), tables, len(worker.standbys)), strict=True):
        yield Sample(metric, (log,), value)
    for one in found:
        yield from _read(OF_PARTITIONS, one, log, str(one.partition))


def _read(metrics: Mapping[str, Metric], found: object, *labels: str) -> Iterator[Sample]:
    for name, metric in metrics.items():
        value = metric.read(found)
        if isinstance(value, Mapping):
            yield from (Sample(name, (*labels, label), one) for label, one in value.items())
        elif value is not None:
            yield Sample(name, labels, bool(value) if isinstance(value, str) else value)


_ASKED: Mapping[type, Callable[[Any, str, str], Iterable[Sample]]] = {
    Materializer: lambda it, log, _: _read(OF_ROUNDS, it.statistics(), log),
    Fleet: lambda it, _, __: (one for state in it.states() for one in _read(OF_FLEETS, state, state.log)),
    Writer: lambda it, log, name: _read(OF_WRITERS, it.statistics(), log, name),
    Table: lambda it, log, name: _read(OF_TABLES, it, log, name),
    Standby: lambda it, log, name: _read(OF_STANDBYS, it, log, name),
    Worker: _of_worker,
}
