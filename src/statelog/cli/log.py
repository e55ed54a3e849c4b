"""`statelog init`, `evolve`, `truncate`, `delete` and `accept-loss`: create a log, evolve its value schema, show what
holds truncation back, delete the log, and accept a loss so that the log can continue.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from statelog.cli.output import CliOutput, confirm
from statelog.cli.session import FILE, Session, connected, log_argument, materializer_settings
from statelog.errors import ConfigError
from statelog.log import Log, LogOptions, accept_data_loss, accept_ledger_loss
from statelog.log.config import read_text
from statelog.operate.description import missing, shape_of, shown_range, taken_along, truncation_facts
from statelog.operate.report import Listing, Report
from statelog.operate.truncation import held
from statelog.reading import list_leases, list_subscriptions
from statelog.schemas.descriptor import HashRule, ValueFormat
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.topic_policy import TruncationMode
from statelog.store.url import mask_url

_EVOLVE_HELP = """Give the log NAME its next value schema. It must be able to read values of every earlier schema;
docs/values.md lists the allowed changes. A schema that the log already has changes nothing.

Writers that start from now on use the newest schema; running ones keep theirs."""


TRUNCATION_MODES = click.Choice([one.value for one in TruncationMode])
_TRUNCATE_HELP = """Show what truncates the log NAME, and what holds truncation back: every snapshot, lease and
subscription that still needs records, which of them is the lowest, and what would release it. This deletes nothing:
rounds of the materializer truncate, or Kafka does.

With --truncation, choose what truncates from now on: the materializer (delete-records), or Kafka, by age (retention).
For retention, set the topics' retention.ms afterwards with Kafka's own tools; for delete-records, set it back to -1
first."""
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})-(\d{1,18})\Z")


@click.command("init", help="Create the log NAME: its two topics and its directory.")
@click.argument("name")
@click.option("--partitions", type=int, default=8, show_default=True, help="Partitions of the data topic.")
@click.option("--key-groups", type=int, default=128, show_default=True, help="Fixed for the life of the log.")
@click.option("--key-type", type=click.Choice([one.value for one in KeyType]), default="bytes", show_default=True)
@click.option("--value-schema", type=FILE, metavar="FILE.avsc", help="An Avro record; default: bytes.")
@click.option(
    "--value-type",
    type=click.Choice([one.value for one in ValueFormat]),
    default="bytes",
    show_default=True,
    help="What values without a schema are.",
)
@click.option(
    "--hash", "hash_rule", type=click.Choice([one.value for one in HashRule]), default="crc32", show_default=True,
    help="How a key's group is found: hashed from the key or its first bytes, or named by the caller.",
)  # fmt: skip
@click.option("--prefix-bytes", type=int, help="The number of first bytes that crc32-prefix hashes.")
@click.option("--ttl-s", type=float, help="A put without a due is due after so many seconds.")
@click.option("--replication-factor", "key_of_replication_factor", type=int, help="Replicas of each topic. Default 3.")
@click.option(
    "--truncation", type=TRUNCATION_MODES, help="Who deletes records: the materializer (default), or Kafka, by age."
)
@click.option("--retention-days", type=int, help="With retention: delete after so many days. Default 7.")
@connected
def init(session: Session, /, name: str, value_schema: Path | None, **options: Any) -> None:
    """Create a log; the options have the names of `LogOptions`."""
    where, avsc = session.where(), None if value_schema is None else read_text(value_schema, "value schema")
    with session.warnings_shown(), Log.create(name, where, LogOptions(value_schema=avsc, **options)) as log:
        facts = {
            "log": name,
            "url": log.store.url,
            "data_topic": log.data_topic,
            "ledger_topic": log.ledger_topic,
            **shape_of(log.descriptor),
            "truncation": str(log.truncation()),
            "replication_factor": where.replication_factor,
        }
        session.output.report(Report(f"created {name}", facts))


@click.command("evolve", help=_EVOLVE_HELP)
@log_argument
@click.option("--value-schema", type=FILE, metavar="FILE.avsc", required=True, help="Avro record.")
@connected
def evolve(session: Session, name: str, value_schema: Path) -> None:
    """Evolve a log's value schema."""
    avsc = read_text(value_schema, "value schema")
    with session.open_log(name) as log:
        before = log.value_schemas.newest().id
        made = log.evolve_value_schema(avsc).id
        schemas = [(one.id, one.avsc) for one in log.value_schemas.all()]
        facts = {
            "log": name,
            "value_schema_id": made,
            "newest_value_schema_id": schemas[-1][0],
            "new": "yes" if made > before else "no",
        }
        done = f"created value schema {made} of" if made > before else f"value schema {made} already exists in"
        session.output.report(Report(f"{done} {name}", facts, (Listing("value_schemas", ("id", "schema"), schemas),)))


@click.command("truncate", help=_TRUNCATE_HELP)
@log_argument
@click.option("--explain", is_flag=True, help="Also show the bounds of each partition.")
@click.option("--truncation", "mode", type=TRUNCATION_MODES, help="Who deletes records from now on.")
@click.option("--retention-days", type=int, help="With retention: delete after so many days. Default 7.")
@connected
def truncate(session: Session, name: str, explain: bool, mode: str | None, retention_days: int | None) -> None:
    """Show what truncates, and what holds truncation back; or change the mode."""
    if mode is None and retention_days is not None:
        raise ConfigError("--retention-days needs --truncation", hint="Add --truncation retention")
    with session.open_log(name) as log:
        found = log.truncation() if mode is None else log.set_truncation(mode, retention_days)
        topics = [log.kafka.describe_topic(one) for one in (log.data_topic, log.ledger_topic)]
        rows = [(one.name, one.config.get("retention.ms"), str(found.retention_ms)) for one in topics if one]
        settings = materializer_settings(session.config, name)
        bounds = held(log, settings, list_leases(log.store), list_subscriptions(log.store))
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
@log_argument
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
        confirm(name, f"This deletes all data of {name} below {mask_url(session.config.root_url())}.")
    with session.warnings_shown():
        Log.delete(name, where)
    session.output.report(Report(f"deleted {name}", {"deleted": name}))


@click.command("accept-loss", help="Accept what the log NAME has lost, so that it can continue. Nothing is recovered.")
@log_argument
@click.option("--range", "ranges", metavar="PARTITION:START-END", multiple=True, help="Offsets of the data topic.")
@click.option("--ledger", "is_ledger", is_flag=True, help="The ledger lost its tail: use the newest snapshot.")
@click.option("--reason", required=True, help="The cause of the loss. Recorded in the ledger.")
@click.option("--operator", required=True, help="Who accepts it. Recorded in the ledger.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the commits with changes in the ranges, and accept nothing.")
@connected
def accept_loss(
    session: Session,
    name: str,
    ranges: tuple[str, ...],
    is_ledger: bool,
    reason: str,
    operator: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Accept a loss."""
    lost = [_range(text) for text in ranges]
    if (bool(lost) and is_ledger) or (dry_run and is_ledger):
        raise ConfigError("--ledger excludes --range and --dry-run", hint="Give one of them")
    with session.open_log(name) as log:
        if is_ledger:
            if not yes:
                what = f"what the ledger of {name} below {session.config.root_url()} lost"
                confirm(name, f"This accepts {what}, and fences all its writers.")
            offset = accept_ledger_loss(log, reason=reason, operator=operator)
        else:
            _show(session, log, lost, is_dry=dry_run)
            if dry_run:
                return
            if not yes:
                typed = " ".join(map(shown_range, lost))
                confirm(typed, "This accepts the loss of these offsets, and of their records, for good.", "the ranges")
            offset = accept_data_loss(log, lost, reason=reason, operator=operator)
    session.output.report(Report(f"accepted a loss of {name}", {"accepted": name, "offset": offset}))


def _show(session: Session, log: Log, lost: Sequence[LossRange], *, is_dry: bool) -> None:
    """Show the commits with changes in these ranges. Raises ConfigError without ranges, and names the missing ones."""
    if not lost:
        found = " ".join(f"--range {shown_range(one)}" for one in missing(log))
        hint = f"Missing by the topic's offsets: {found}" if found else "Take the offsets from a reader's error"
        raise ConfigError("give --range, once or more, or --ledger", hint=hint)
    typed = " ".join(map(shown_range, lost))
    facts, along = {"log": log.name, "ranges": typed}, taken_along(log, lost)
    output = CliOutput(as_json=session.output.as_json, to_stderr=not is_dry)  # The result follows.
    output.report(Report(f"commits with changes in {typed} of {log.name}", facts, (along,)))


def _range(text: str) -> LossRange:
    found = _RANGE.match(text)
    if found is None:
        hint = "Write 3:100-120: partition 3, from 100, below 120"
        raise ConfigError(f"{text!r} is not a range of offsets", hint=hint)
    return LossRange(*(int(number) for number in found.groups()))
