"""`statelog init`, `evolve`, `truncate` and `delete`: makes a log, gives it its next value schema, says what truncates
it and what does not, deletes it for good.
"""

from pathlib import Path
from typing import Any

import click

from statelog.cli.output import confirm
from statelog.cli.session import Session, connected, materializer_settings
from statelog.operate.description import shape_of, truncation_facts
from statelog.operate.report import Listing, Report
from statelog.operate.truncation import held
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.topic_policy import TruncationMode
from statelog.schemas.values.schema import ValueSchema
from statelog.storage import LogOptions
from statelog.storage.claims import list_leases, list_subscriptions
from statelog.storage.config import read_text
from statelog.storage.log.log import Log

_EVOLVE_HELP = """Give the log NAME its next value schema. It must read what every earlier one wrote;
docs/values.md says which changes do. A schema that the log already has changes nothing.

Writers that start from now on use the newest schema; running ones keep theirs."""


TRUNCATION_MODES = click.Choice([one.value for one in TruncationMode])
_TRUNCATE_HELP = """Show who truncates the log NAME, and what holds that back: every snapshot, lease and subscription
that still needs its records, which of them holds, and what would free it. Nothing is deleted: rounds of the
materializer truncate, or Kafka does.

With --truncation, say who truncates from now on: the materializer (delete-records), or Kafka, by age (retention). For
retention, give the topics their retention.ms afterwards, with Kafka's own tools; for delete-records, set it back to -1
first."""


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


@click.command("truncate", help=_TRUNCATE_HELP)
@click.argument("name")
@click.option("--explain", is_flag=True, help="Show what holds each partition, too.")
@click.option("--truncation", "mode", type=TRUNCATION_MODES, help="Who deletes records from now on.")
@click.option("--retention-days", type=int, help="With retention: after how many days. Default 7.")
@connected
def truncate(session: Session, name: str, explain: bool, mode: str | None, retention_days: int | None) -> None:
    """Show what truncates, and what holds that back; or change who does."""
    with session.open_log(name) as log:
        found = log.truncation() if mode is None else log.set_truncation(mode, retention_days)
        topics = [log.kafka.describe_topic(one) for one in (log.data_topic, log.ledger_topic)]
        rows = [(one.name, one.config.get("retention.ms"), str(found.retention_ms)) for one in topics if one]
        bounds = held(log, materializer_settings(session.config), list_leases(log.store), list_subscriptions(log.store))
        facts = {"log": name, "truncation": found.mode.value, "retention_days": found.retention_days}
        report = Report(
            f"{name}: truncation is {found}{' from now on' * (mode is not None)}",
            {**facts, **truncation_facts(bounds)},
            (
                Listing("topics", ("topic", "retention_ms", "wanted_retention_ms"), rows),
                bounds.listing(),
                *[bounds.by_partition()] * explain,
            ),
        )
        session.output.report(report)


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
