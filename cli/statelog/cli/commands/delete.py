"""`statelog delete`: delete a log for good, after its name was typed again."""

import click

from statelog.cli.output import Fact, Report
from statelog.cli.session import Session, connected
from statelog.schemas.errors import ConfigError
from statelog.storage.log import Log

__all__ = ["command"]


@click.command("delete", help="Delete the log NAME for good: topics, snapshots, everything.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@connected
def command(session: Session, name: str, yes: bool) -> None:
    """Delete a log."""
    place = session.place()
    if not yes:
        _ask(name, str(place["root"]))
    with session.warnings_shown():
        Log.delete(name, **place)
    session.output.report(Report(f"deleted {name}", (Fact("deleted", name),)))


def _ask(name: str, root: str) -> None:
    try:
        typed = click.prompt(f"This deletes all data of {name} below {root}. Type its name to go on", err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt) or isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise ConfigError("nobody answered; nothing was deleted", hint="In scripts, give --yes") from None
    if typed != name:
        raise ConfigError("the name that was typed is another one; nothing was deleted", log=name)
