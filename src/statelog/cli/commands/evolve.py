"""`statelog evolve`: gives a log its next value schema."""

from pathlib import Path

import click

from statelog.cli.screen.output import Fact, Listing, Report, Unit
from statelog.cli.session import Session, connected
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.config import read_text
from statelog.storage.log.log import Log

__all__ = ["command"]

_HELP = """Give the log NAME its next value schema. It must read what every earlier one wrote; docs/values.md says which
changes do. A schema that the log already has changes nothing.

Writers that start from now on use the newest schema; running ones keep theirs."""


@click.command("evolve", help=_HELP)
@click.argument("name")
@click.option(
    "--value-schema", type=click.Path(path_type=Path), metavar="FILE.avsc", required=True, help="Avro record."
)
@connected
def command(session: Session, name: str, value_schema: Path) -> None:
    """Evolve a log's values."""
    avsc = read_text(value_schema, "value schema")
    with session.open_log(name) as log:
        before = log.value_schemas.newest().id
        found = log.evolve_value_schema(avsc)
        session.output.report(_report(log, before, found))


def _report(log: Log, before: int, found: ValueSchema) -> Report:
    schemas = log.value_schemas.all()
    done = f"created value schema {found.id} of" if found.id > before else f"value schema {found.id} already exists in"
    rows = tuple((one.id, one.avsc) for one in schemas)
    return Report(
        f"{done} {log.name}",
        (
            Fact("log", log.name),
            Fact("value_schema_id", found.id, Unit.COUNT),
            Fact("newest_value_schema_id", schemas[-1].id, Unit.COUNT),
            Fact("new", "yes" if found.id > before else "no"),
        ),
        (Listing("value_schemas", (("id", Unit.COUNT), ("schema", Unit.TEXT)), rows),),
    )
