"""`statelog delete`: deletes a log for good, after its name is typed again."""

import click

from statelog.cli.screen.confirmation import confirm
from statelog.cli.screen.output import Fact, Report
from statelog.cli.session import Session, connected
from statelog.storage.log.log import Log

__all__ = ["command"]


@click.command("delete", help="Delete the log NAME for good: topics, snapshots, everything.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def command(session: Session, name: str, yes: bool) -> None:
    """Delete a log."""
    where = session.where()
    if not yes:
        confirm(name, f"This deletes all data of {name} below {where.root}.")
    with session.warnings_shown():
        Log.delete(name, where)
    session.output.report(Report(f"deleted {name}", (Fact("deleted", name),)))
