"""`statelog init`: creates a log."""

from pathlib import Path

import click

from statelog.cli.screen.output import Fact, Report, Unit
from statelog.cli.session import Session, connected
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from statelog.storage.config import read_text
from statelog.storage.log.log import Log
from statelog.storage.log.where import LogOptions

__all__ = ["command"]


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
@connected
def command(
    session: Session,
    name: str,
    partitions: int,
    key_groups: int,
    key_type: str,
    value_schema: Path | None,
    hash_rule: str,
    prefix_bytes: int | None,
) -> None:
    """Make a log."""
    where = session.where()
    with (
        session.warnings_shown(),
        Log.create(
            name,
            where,
            LogOptions(
                partitions=partitions,
                key_groups=key_groups,
                key_type=key_type,
                hash_rule=hash_rule,
                prefix_bytes=prefix_bytes,
                value_schema=None if value_schema is None else read_text(value_schema, "value schema"),
            ),
        ) as log,
    ):
        session.output.report(_report(log, where.replication_factor))


def _report(log: Log, replication_factor: int) -> Report:
    descriptor = log.descriptor
    return Report(
        f"created {log.name}",
        (
            Fact("log", log.name),
            Fact("url", log.store.url),
            Fact("data_topic", log.data_topic),
            Fact("ledger_topic", log.ledger_topic),
            Fact("partitions", descriptor.partitions, Unit.COUNT),
            Fact("key_groups", descriptor.key_groups, Unit.COUNT),
            Fact("key_type", descriptor.key_type.value),
            Fact("values", "typed" if descriptor.value_schema_id else "bytes"),
            Fact("hash", descriptor.hash_rule.value),
            Fact("prefix_bytes", descriptor.prefix_bytes, Unit.COUNT),
            Fact("replication_factor", replication_factor, Unit.COUNT),
        ),
    )
