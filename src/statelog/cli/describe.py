"""`statelog describe`: what a log is, and its current status; `statelog subscriptions`: the readers that hold
truncation while they are stopped, too, and the removal of one.
"""

from collections.abc import Sequence

import click

from statelog.cli.materialize import materializer_settings
from statelog.cli.output import Fact, Listing, Report, Unit, confirm
from statelog.cli.session import Session, connected
from statelog.formatting import show_time
from statelog.materializer import tail_now
from statelog.materializer.tail import Tail
from statelog.schemas.ledger.place import shown_id
from statelog.schemas.names import data_topic, ledger_topic
from statelog.schemas.snapshot.claims import SubscriptionFile, expired, holding, newest_files
from statelog.schemas.snapshot.retention import truncation_floor
from statelog.storage.claims import HeldLease, StoredSubscriptions, list_leases, list_subscriptions, remove_subscription
from statelog.storage.log.log import Log, LogDescription

_NONE = StoredSubscriptions(files=(), unreadable=())


_SUBSCRIPTIONS_HELP = """Show the subscriptions of the log NAME: readers that hold truncation back, also while they are
stopped.

A removed one holds nothing any more. Its reader is told when it asks next, and goes on only under another reader id."""


@click.command("describe", help="Show what the log NAME is, and its current status.")
@click.argument("name")
@connected
def command(session: Session, name: str) -> None:
    """Show a log."""
    with session.open_log(name) as log:
        tail, leases, subscriptions = (
            tail_now(log),
            list_leases(log.store),
            list_subscriptions(log.store),
        )
        held_by = _held_by(log, leases, subscriptions, materializer_settings(session.config).lease_cap_s)
        session.output.report(describe(log.describe(), tail, leases, subscriptions, held_by))


def describe(
    found: LogDescription,
    tail: Tail,
    leases: Sequence[HeldLease] = (),
    subscriptions: StoredSubscriptions = _NONE,
    held_by: str = "",
) -> Report:
    """A log's description as a report. `lag` counts what the newest snapshot does not cover yet; `held_by` names what
    holds truncation back now.
    """
    listings = (_partitions(found), _writers(found), _value_schemas(found), _runs(found))
    return Report(
        found.descriptor.name,
        (*_what_it_is(found), *_how_it_stands(found), *_lag(tail), Fact("truncation_held_by", held_by or None)),
        (*listings, _leases(leases), subscriptions_listing(subscriptions)),
    )


def _held_by(log: Log, leases: Sequence[HeldLease], subscriptions: StoredSubscriptions, lease_cap_s: float) -> str:
    """The manifest, lease or subscription that the ledger cannot be truncated past now; empty without a snapshot."""
    if subscriptions.unreadable:
        return f"subscription {subscriptions.unreadable[0].reader}, which cannot be read"
    now_s = log.store.now_s()
    live = [held.lease for held in leases if not expired(held.lease, held.modified_s, now_s, lease_cap_s)]
    listed = log.manifests.numbers()
    if not listed:
        return ""
    oldest = log.manifests.read(listed[0]).manifest
    return truncation_floor([oldest], [*live, *holding(subscriptions.files, log.descriptor.identity)]).ledger_held_by


def _what_it_is(found: LogDescription) -> tuple[Fact, ...]:
    descriptor, identity = found.descriptor, found.descriptor.identity
    return (
        Fact("log", descriptor.name),
        Fact("url", found.url),
        Fact("cluster", identity.cluster_id),
        Fact("data_topic", data_topic(descriptor.name)),
        Fact("ledger_topic", ledger_topic(descriptor.name)),
        Fact("data_topic_id", shown_id(identity.data_topic_id)),
        Fact("ledger_topic_id", shown_id(identity.ledger_topic_id)),
        Fact("partitions", descriptor.partitions, Unit.COUNT),
        Fact("key_groups", descriptor.key_groups, Unit.COUNT),
        Fact("key_type", descriptor.key_type.value),
        Fact("values", "typed" if descriptor.value_schema_id else "bytes"),
        Fact("hash", descriptor.hash_rule.value),
        Fact("prefix_bytes", descriptor.prefix_bytes, Unit.COUNT),
    )


def _how_it_stands(found: LogDescription) -> tuple[Fact, ...]:
    manifest = found.manifest
    runs = manifest.runs if manifest else ()
    covered = manifest.next_offsets if manifest else {}
    committed = found.state.committed_positions
    behind = sum(end - covered.get(partition, 0) for partition, end in committed.items())
    return (
        Fact("position", found.state.position, Unit.COUNT),
        Fact("ledger_start", found.ledger_offsets.start, Unit.COUNT),
        Fact("manifests", found.manifests, Unit.COUNT),
        Fact("newest_manifest", manifest.number if manifest else None, Unit.COUNT),
        Fact("manifest_position", manifest.position if manifest else None, Unit.COUNT),
        Fact("manifest_time", show_time(manifest.created_s) if manifest else None),
        Fact("snapshot_rows", sum(run.rows for run in runs), Unit.COUNT),
        Fact("snapshot_bytes", sum(run.size_bytes for run in runs), Unit.BYTES),
        Fact("lag_ledger_records", found.state.position - (manifest.position if manifest else 0), Unit.COUNT),
        Fact("lag_data_records", behind, Unit.COUNT),
        Fact("accepted_losses", len(found.state.accepted), Unit.COUNT),
    )


def _lag(tail: Tail) -> tuple[Fact, ...]:
    return (
        Fact("lag_commits", tail.commits, Unit.COUNT),
        Fact("lag_changes", tail.changes, Unit.COUNT),
        Fact("lag_bytes", tail.size_bytes, Unit.BYTES),
        Fact("lag_age_s", tail.age_s, Unit.SECONDS),
    )


def _partitions(found: LogDescription) -> Listing:
    covered = found.manifest.next_offsets if found.manifest else {}
    committed = found.state.committed_positions
    names = ("partition", "log_start", "log_end", "committed_position", "snapshot_next_offset")
    return Listing(
        "data_partitions",
        tuple((name, Unit.COUNT) for name in names),
        tuple(
            (partition, offsets.start, offsets.end, committed.get(partition, 0), covered.get(partition, 0))
            for partition, offsets in sorted(found.data_offsets.items())
        ),
    )


def _writers(found: LogDescription) -> Listing:
    live = {epoch.writer: epoch.epoch for epoch in found.state.live}
    rows = tuple(
        (row.name, row.checkpoint.id, row.commit_offset, live.get(row.name), dict(row.metadata))
        for row in found.state.writers
    )
    units = (Unit.TEXT, Unit.COUNT, Unit.COUNT, Unit.COUNT, Unit.TEXT)
    names = ("writer", "checkpoint", "commit_offset", "live_epoch", "metadata")
    return Listing("writers", tuple(zip(names, units, strict=True)), rows)


def _value_schemas(found: LogDescription) -> Listing:
    rows = tuple((one.id, one.avsc) for one in found.value_schemas if not one.is_opaque)
    return Listing("value_schemas", (("id", Unit.COUNT), ("schema", Unit.TEXT)), rows)


def _runs(found: LogDescription) -> Listing:
    runs = found.manifest.runs if found.manifest else ()
    head = ("path", "level", "start_position", "end_position", "first_key_group", "end_key_group")
    names = (*head, "value_schema_id", "rows", "size_bytes")
    units = (Unit.TEXT, *(Unit.COUNT for _ in names[1:-1]), Unit.BYTES)
    rows = tuple(
        (
            run.path,
            run.level,
            run.start_position,
            run.end_position,
            run.first_key_group,
            min(run.end_key_group, found.descriptor.key_groups),
            run.value_schema_id,
            run.rows,
            run.size_bytes,
        )
        for run in runs
    )
    return Listing("runs", tuple(zip(names, units, strict=True)), rows)


def _leases(leases: Sequence[HeldLease]) -> Listing:
    """Who holds what back. A lease counts until its holder was silent for `ttl_s`, by the store's time."""
    names = ("holder", "position", "manifest", "renewed", "ttl_s", "path")
    units = (Unit.TEXT, Unit.COUNT, Unit.COUNT, Unit.TEXT, Unit.SECONDS, Unit.TEXT)
    rows = tuple(
        (
            held.lease.holder,
            held.lease.position,
            held.lease.manifest_number or None,
            show_time(held.modified_s),
            held.lease.ttl_s,
            held.path,
        )
        for held in leases
    )
    return Listing("leases", tuple(zip(names, units, strict=True)), rows)


@click.command("subscriptions", help=_SUBSCRIPTIONS_HELP)
@click.argument("name")
@click.option("--remove", "reader", metavar="READER", help="End the subscription of this reader.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def subscriptions(session: Session, name: str, reader: str | None, yes: bool) -> None:
    """Show subscriptions, or remove one."""
    with session.open_log(name) as log:
        if reader is None:
            session.output.report(Report(name, (), (subscriptions_listing(list_subscriptions(log.store)),)))
            return
        if not yes:
            confirm(name, f"This ends the subscription of reader {reader}: what it did not read may be truncated.")
        was = remove_subscription(log, reader, "removed by command")
        done = "ended already" if was.ended else "removed"
        facts = (Fact("reader", reader), Fact("position", was.position, Unit.COUNT), Fact("ended", was.ended or done))
        session.output.report(Report(f"subscription of {reader}: {done}", facts))


def subscriptions_listing(found: StoredSubscriptions) -> Listing:
    """How the subscription of every reader stands; one that cannot be read says so."""
    columns = (
        ("reader", Unit.TEXT), ("status", Unit.TEXT), ("position", Unit.COUNT), ("holder", Unit.TEXT),
        ("created", Unit.TEXT), ("moved", Unit.TEXT), ("path", Unit.TEXT),
    )  # fmt: skip
    rows = [_subscription_row(one) for one in newest_files(found.files).values()]
    rows += [(one.reader, f"UNREADABLE: {one.problem}", None, None, None, None, one.path) for one in found.unreadable]
    return Listing("subscriptions", columns, tuple(sorted(rows)))


def _subscription_row(file: SubscriptionFile) -> tuple[str | int | None, ...]:
    found = file.subscription
    holds = "holds" if found.is_taken_up else "holds, not taken up"
    status = f"ended: {found.ended}" if found.ended else holds
    return (
        found.reader, status, found.position, found.holder, show_time(found.created_s), show_time(found.moved_s),
        found.path,
    )  # fmt: skip
