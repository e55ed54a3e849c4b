"""`statelog init`, `evolve` and `delete`: makes a log, gives it its next value schema, deletes it for good."""

from pathlib import Path
from typing import Any

import click

from statelog.cli.materialize import materializer_settings
from statelog.cli.output import confirm
from statelog.cli.session import Session, connected
from statelog.materializer import MaterializerSettings
from statelog.operate.description import shape_of, truncation_facts
from statelog.operate.report import Listing, Report
from statelog.operate.truncation import held
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.topic_policy import Truncation, TruncationMode
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.claims import list_leases, list_subscriptions
from statelog.storage.config import read_text
from statelog.storage.log.log import Log
from statelog.storage.log.where import LogOptions

_EVOLVE_HELP = """Give the log NAME its next value schema. It must read what every earlier one wrote;
docs/values.md says which changes do. A schema that the log already has changes nothing.

Writers that start from now on use the newest schema; running ones keep theirs."""


TRUNCATION_MODES = click.Choice([one.value for one in TruncationMode])
_TRUNCATION_HELP = """Show who deletes the records that the log NAME needs no more; with --truncation, say who does from
now on: the materializer (delete-records), or Kafka, by their age (retention).

For retention the topics get their retention.ms afterwards, with Kafka's own tools; for delete-records they get back -1
before.

With --explain, show what holds truncation back: of each partition and of the ledger every snapshot, lease and
subscription that still needs it, which of them holds, and what would free it."""


@click.command("init", help="Create the log NAME: its two topics and its directory.")
@click.argument("name")
@click.option("--partitions", type=int, default=8, show_default=True, help="Partitions of the data topic.")
@click.option("--key-groups", type=int, default=128, show_default=True, help="Fixed for the life of the log.")
@click.option("--key-type", type=click.Choice([one.value for one in KeyType]), default="bytes", show_default=True)
@click.option(
    "--value-schema", type=click.Path(path_type=Path), metavar="FILE.avsc", help="An Avro record; default: bytes."
)
@click.option(
    "--hash", "hash_rule", type=click.Choice([one.value for one in HashRule]), default="crc32", show_default=True,
    help="How a key's group is found: hashed from the key, or from its first bytes, or named by the caller.",
)  # fmt: skip
@click.option("--prefix-bytes", type=int, help="How many first bytes crc32-prefix hashes.")
@click.option("--replication-factor", "key_of_replication_factor", type=int, help="Replicas of each topic. Default 3.")
@click.option(
    "--truncation",
    type=TRUNCATION_MODES,
    help="Who deletes records: the materializer (default), or Kafka, by their age.",
)
@click.option("--retention-days", type=int, help="With retention: after how many days. Default 7.")
@connected
def init(session: Session, /, name: str, value_schema: Path | None, **options: Any) -> None:
    """Make a log; the options are named as those of `LogOptions`."""
    where, avsc = session.where(), None if value_schema is None else read_text(value_schema, "value schema")
    with session.warnings_shown(), Log.create(name, where, LogOptions(value_schema=avsc, **options)) as log:
        session.output.report(_init_report(log, where.replication_factor))


def _init_report(log: Log, replication_factor: int) -> Report:
    return Report(
        f"created {log.name}",
        {
            "log": log.name,
            "url": log.store.url,
            "data_topic": log.data_topic,
            "ledger_topic": log.ledger_topic,
            **shape_of(log.descriptor),
            "truncation": str(log.truncation()),
            "replication_factor": replication_factor,
        },
    )


@click.command("evolve", help=_EVOLVE_HELP)
@click.argument("name")
@click.option(
    "--value-schema", type=click.Path(path_type=Path), metavar="FILE.avsc", required=True, help="Avro record."
)
@connected
def evolve(session: Session, name: str, value_schema: Path) -> None:
    """Evolve a log's values."""
    avsc = read_text(value_schema, "value schema")
    with session.open_log(name) as log:
        before = log.value_schemas.newest().id
        found = log.evolve_value_schema(avsc)
        session.output.report(_evolve_report(log, before, found))


def _evolve_report(log: Log, before: int, found: ValueSchema) -> Report:
    schemas = log.value_schemas.all()
    done = f"created value schema {found.id} of" if found.id > before else f"value schema {found.id} already exists in"
    return Report(
        f"{done} {log.name}",
        {
            "log": log.name,
            "value_schema_id": found.id,
            "newest_value_schema_id": schemas[-1].id,
            "new": "yes" if found.id > before else "no",
        },
        (Listing("value_schemas", ("id", "schema"), [(one.id, one.avsc) for one in schemas]),),
    )


@click.command("truncation", help=_TRUNCATION_HELP)
@click.argument("name")
@click.option("--truncation", "mode", type=TRUNCATION_MODES, help="Who deletes records from now on.")
@click.option("--retention-days", type=int, help="With retention: after how many days. Default 7.")
@click.option(
    "--explain", is_flag=True, help="Show every bound of every partition, which one holds, and what frees it."
)
@connected
def truncation(session: Session, name: str, mode: str | None, retention_days: int | None, explain: bool) -> None:
    """Show or change who truncates, or what holds that back."""
    with session.open_log(name) as log:
        if explain:
            session.output.report(_explained(log, materializer_settings(session.config)))
            return
        found = log.truncation() if mode is None else log.set_truncation(mode, retention_days)
        session.output.report(_truncation_report(log, found, is_said=mode is not None))


def _explained(log: Log, settings: MaterializerSettings) -> Report:
    bounds = held(log, settings, list_leases(log.store), list_subscriptions(log.store))
    facts = {"log": log.name, "truncation": str(log.truncation()), **truncation_facts(bounds)}
    return Report(f"what holds truncation of {log.name} back", facts, (bounds.listing(), bounds.by_partition()))


def _truncation_report(log: Log, found: Truncation, *, is_said: bool) -> Report:
    topics = [log.kafka.describe_topic(name) for name in (log.data_topic, log.ledger_topic)]
    ages_ms = {one.name: one.config.get("retention.ms") for one in topics if one is not None}
    return Report(
        f"{log.name}: truncation is {found}{' from now on' * is_said}",
        {"log": log.name, "truncation": found.mode.value, "retention_days": found.retention_days},
        (
            Listing(
                "topics",
                ("topic", "retention_ms", "wanted_retention_ms"),
                [(name, found_ms, str(found.retention_ms)) for name, found_ms in ages_ms.items()],
            ),
        ),
    )


@click.command("delete", help="Delete the log NAME for good: topics, snapshots, everything.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@connected
def delete(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a log."""
    where = session.where()
    if dry_run:
        with session.open_log(name) as log:
            files = list(log.store.list())
            ranges = [*log.data_offsets().values(), *log.kafka.offsets(log.ledger_topic, [0]).values()]
            facts = {
                "would_delete": name,
                "topics": f"{log.data_topic}, {log.ledger_topic}",
                "records": sum(end - start for start, end in ranges),
                "url": log.store.url,
                "files": len(files),
                "files_bytes": sum(one.size_bytes for one in files),
            }
        session.output.report(Report(f"would delete {name}", facts))
        return
    if not yes:
        confirm(name, f"This deletes all data of {name} below {where.root}.")
    with session.warnings_shown():
        Log.delete(name, where)
    session.output.report(Report(f"deleted {name}", {"deleted": name}))
