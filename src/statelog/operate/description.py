"""A log's properties and status as a report, for `statelog describe` and the page; and reports about losses.

The latter: missing offsets of the data topic, the commits that accepting a loss would drop, and past acceptances. Owns
the names of the facts. Reads the log, its leases and its subscriptions; writes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from statelog.environment import current_environment
from statelog.formatting import show_time
from statelog.log import Log, LogDescription
from statelog.materializer import tail_now
from statelog.materializer.schedule import Rates, estimate
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tail import Tail
from statelog.operate.log_checks import lag_facts, of_rounds
from statelog.operate.report import Listing, Report
from statelog.operate.truncation import Held, held
from statelog.reading import HeldLease, StoredSubscriptions, fold_to, list_leases, list_subscriptions
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.place import shown_id
from statelog.schemas.ledger.records import AcceptLoss, LossRange, is_forfeited
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import data_topic, ledger_topic
from statelog.schemas.snapshot.claims import SubscriptionFile, newest_files
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.store.files import AcceptedLoss, losses_of
from statelog.tables.publishing.backlog import Backlog, backlog

_OLDEST = 2
"""The number of snapshots that are shown as bounds: the oldest, and the next oldest."""


def describe_log(log: Log, settings: MaterializerSettings, now_s: float | None = None) -> Report:
    """Return the log's current status. The `lag` facts count what the newest snapshot does not cover yet.

    `settings`: the materializer's; they determine what holds truncation back.
    `now_s`: the time, in seconds since 1970, by which leases and dues are judged.

    Raises Damaged, Unavailable, ConfigError without the right to read both topics.
    """
    tail, leases, subscriptions = tail_now(log), list_leases(log.store), list_subscriptions(log.store)
    bounds = held(log, settings, leases, subscriptions, most_snapshots=_OLDEST, now_s=now_s)
    found = log.describe()
    runs = found.manifest.runs if found.manifest else ()
    now_s = current_environment().wall_clock() if now_s is None else now_s
    losses = losses_listing(losses_of(log.store), found.state)
    schemas = [(one.id, one.avsc) for one in found.value_schemas if not one.is_opaque]
    values = Listing("value_schemas", ("id", "schema"), schemas)
    writers = _writers(found, backlog(log, found.state))
    listings = (_partitions(found), writers, values, _runs(found), losses, bounds.listing())
    return Report(
        found.descriptor.name,
        {**_facts(found, tail, settings), **due_facts(runs, now_s), **truncation_facts(bounds)},
        (*listings, _leases(leases), subscriptions_listing(subscriptions)),
    )


def truncation_facts(bounds: Held) -> dict[str, object]:
    """Return the facts that name the ledger's lowest bound, and why truncation is off altogether, if it is."""
    return {"truncation_held_by": bounds.held_by or None, "truncation_held_back": bounds.held_back or None}


def due_facts(runs: Collection[RunRef], now_s: float) -> dict[str, object]:
    """Return how many rows of a snapshot have a due, at most how many of them are due by now, and since when.

    A run only knows its earliest and its latest due, and a newer run may have replaced or deleted a row. Rows that are
    due stay until the owner of their table deletes them.
    """
    overdue = [run for run in runs if run.due_rows and run.first_due_ms <= now_s * 1000]
    since_ms = min((run.first_due_ms for run in overdue), default=None)
    return {
        "due_rows": sum(run.due_rows for run in runs),
        "overdue_rows_max": sum(run.due_rows for run in overdue),
        "overdue_since": None if since_ms is None else show_time(since_ms / 1000),
    }


def _facts(found: LogDescription, tail: Tail, settings: MaterializerSettings) -> dict[str, object]:
    descriptor, identity, manifest = found.descriptor, found.descriptor.identity, found.manifest
    runs = manifest.runs if manifest else ()
    covered = manifest.next_offsets if manifest else {}
    committed = found.state.committed_positions
    runs_bytes = sum(run.size_bytes for run in runs)
    # The default rates, which are low: nothing was measured.
    restore = estimate(
        Rates(),
        snapshot_bytes=runs_bytes,
        tail_bytes=tail.size_bytes,
        tail_changes=tail.changes,
        tail_chunks=tail.chunks,
    )
    verdict = of_rounds(tail, restore.total_s, settings)
    return {
        "log": descriptor.name,
        "verdict": verdict.found,
        "verdict_severity": verdict.severity.value,
        "verdict_hint": verdict.hint or None,
        "url": found.url,
        "cluster": identity.cluster_id,
        "data_topic": data_topic(descriptor.name),
        "ledger_topic": ledger_topic(descriptor.name),
        "data_topic_id": shown_id(identity.data_topic_id),
        "ledger_topic_id": shown_id(identity.ledger_topic_id),
        **shape_of(descriptor),
        "truncation": str(found.truncation),
        "position": found.state.position,
        "ledger_start": found.ledger_offsets.start,
        "manifests": found.manifests,
        "newest_manifest": manifest.number if manifest else None,
        "manifest_position": manifest.position if manifest else None,
        "manifest_time": show_time(manifest.created_s) if manifest else None,
        "snapshot_rows": sum(run.rows for run in runs),
        "snapshot_bytes": runs_bytes,
        "lag_ledger_records": found.state.position - (manifest.position if manifest else 0),
        "lag_data_records": sum(end - covered.get(partition, 0) for partition, end in committed.items()),
        "accepted_losses": len(found.state.accepted),
        **lag_facts(tail),
        "restore_estimate_s": restore.total_s,
    }


def _partitions(found: LogDescription) -> Listing:
    covered = found.manifest.next_offsets if found.manifest else {}
    committed = found.state.committed_positions
    rows = [
        (partition, offsets.start, offsets.end, committed.get(partition, 0), covered.get(partition, 0))
        for partition, offsets in sorted(found.data_offsets.items())
    ]
    columns = ("partition", "log_start", "log_end", "committed_position", "snapshot_next_offset")
    return Listing("data_partitions", columns, rows)


def _writers(found: LogDescription, unpublished: Mapping[str, Backlog]) -> Listing:
    """List the writers; if one ever sent messages, with the backlog of each that did."""
    live = {epoch.writer: epoch.epoch for epoch in found.state.live}
    rows: list[tuple[object, ...]] = [
        (row.name, row.checkpoint.id, row.commit_offset, live.get(row.name), dict(row.metadata))
        for row in found.state.writers
    ]
    columns: tuple[str, ...] = ("writer", "checkpoint", "commit_offset", "live_epoch", "metadata")
    if unpublished:
        rows = [(*row, *(unpublished.get(str(row[0])) or (None, None))) for row in rows]
        columns = (*columns, "published_position", "unpublished_messages")
    return Listing("writers", columns, rows)


def _runs(found: LogDescription) -> Listing:
    runs = found.manifest.runs if found.manifest else ()
    head = ("path", "level", "start_position", "end_position", "first_key_group", "end_key_group")
    columns = (*head, "value_schema_id", "rows", "size_bytes")
    shown = [replace(run, end_key_group=min(run.end_key_group, found.descriptor.key_groups)) for run in runs]
    optional = ("first_key_group", "end_key_group", "value_schema_id")
    return Listing("runs", columns, list(map(attrgetter(*columns), shown)), optional)


def _leases(leases: Sequence[HeldLease]) -> Listing:
    """List the leases. A lease counts until its holder is silent for `ttl_s`, by the store's clock."""
    rows = [
        (one.holder, one.position, one.manifest_number or None, show_time(held.modified_s), one.ttl_s, held.path)
        for held in leases
        for one in [held.lease]
    ]
    return Listing("leases", ("holder", "position", "manifest", "renewed", "ttl_s", "path"), rows)


def shape_of(descriptor: Descriptor) -> dict[str, object]:
    """Return a log's immutable properties as facts of a report."""
    return {
        "partitions": descriptor.partitions,
        "key_groups": descriptor.key_groups,
        "key_type": descriptor.key_type.value,
        "values": "typed" if descriptor.value_schema_id else descriptor.value_type.value,
        "hash": descriptor.hash_rule.value,
        "prefix_bytes": descriptor.prefix_bytes,
        "ttl_s": descriptor.ttl_s,
        "record_bytes_max": descriptor.record_bytes_max,
    }


def subscriptions_listing(found: StoredSubscriptions) -> Listing:
    """List the subscription of every reader, with its status; unreadable ones are marked."""
    columns = ("reader", "status", "position", "holder", "created", "moved", "path")
    rows = [_subscription_row(one) for one in newest_files(found.files).values()]
    rows += [(one.reader, f"UNREADABLE: {one.problem}", None, None, None, None, one.path) for one in found.unreadable]
    return Listing("subscriptions", columns, sorted(rows))


def _subscription_row(file: SubscriptionFile) -> tuple[str | int | None, ...]:
    found = file.subscription
    holds = "holds" if found.is_taken_up else "holds, not taken up"
    status = f"ended: {found.ended}" if found.ended else holds
    return (
        found.reader, status, found.position, found.holder, show_time(found.created_s), show_time(found.moved_s),
        found.path,
    )  # fmt: skip


def shown_range(lost: LossRange) -> str:
    """Format a range as `--range` takes it."""
    return f"{lost.partition}:{lost.start_offset}-{lost.end_offset}"


def missing(log: Log) -> tuple[LossRange, ...]:
    """Return the committed offsets behind the newest snapshot that lie below a partition's start or above its end.

    A reader's error names damaged records within the partition. Raises Damaged, Unavailable.
    """
    newest = log.manifests.newest()
    state = log.history.read().state
    covered = newest.next_offsets if newest else {}
    there = log.data_offsets(at_least=state.committed_positions)
    found: list[LossRange] = []
    for partition, end in sorted(state.committed_positions.items()):
        start, log_end = covered.get(partition, 0), there[partition].end
        found += [
            LossRange(partition, start, min(there[partition].start, end)),
            LossRange(partition, max(start, log_end), end),
        ]
    return tuple(one for one in found if one[1] < one[2] and not is_forfeited(state.accepted, *one))


def taken_along(log: Log, ranges: Collection[LossRange]) -> Listing:
    """List the commits behind the newest snapshot with changes or messages in these ranges, and how many are there.

    A range without a row is covered by the snapshot: no change is lost with it, but unpublished messages may be. Raises
    Damaged, Unavailable.
    """
    since_s = log.history.now_s()
    end, newest = log.history.end(), log.manifests.newest()
    commits = fold_to(log, newest, end, end, since_s).commits
    rows: list[tuple[object, ...]] = []
    for lost in sorted(ranges):
        for commit in commits:
            outputs = (entry for handle in commit.body.handles for entry in handle.outputs)
            changes, messages = _lost(commit.entries({lost.partition}), lost), _lost(outputs, lost)
            if changes or messages:
                place = (commit.writer, commit.checkpoint_id, commit.position)
                rows.append((shown_range(lost), *place, changes, messages))
    columns = ("range", "writer", "checkpoint", "position", "changes", "messages")
    return Listing("commits_taken_along", columns, rows)


def _lost(entries: Iterable[Entry], lost: LossRange) -> int:
    """Count what a loss takes along of change sets, or of their messages."""
    partition, start, end = lost
    return sum(
        one.changes
        for one in entries
        if one.partition == partition and one.first_offset < end and start < one.end_offset
    )


def losses_listing(found: Sequence[AcceptedLoss], state: LedgerState) -> Listing:
    """List the accepted losses. One that does not `count` never reached the ledger, or was lost with its tail."""
    rows = [(show_time(one.accepted_s), *_cells_of(one, state)) for one in found]
    return Listing("losses", ("accepted", "operator", "reason", "given_up", "counts"), rows)


def _cells_of(one: AcceptedLoss, state: LedgerState) -> tuple[str | None, str, str | None, bool | None]:
    record = one.record
    if record is None:
        return None, f"UNREADABLE: {one.problem}", None, None
    if isinstance(record, AcceptLoss):
        given = ", ".join(map(shown_range, record.ranges))
        return record.operator, record.reason, given, all(is_forfeited(state.accepted, *lost) for lost in record.ranges)
    given = f"the ledger below position {record.position}" if record.position > 1 else "what the ledger lost"
    return record.operator, record.reason, given, state.restarted >= max(0, record.position - 1)
