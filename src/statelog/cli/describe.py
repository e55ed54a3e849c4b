"""`statelog describe`: what a log is, and its current status; `statelog subscriptions`: the readers that hold
truncation while they are stopped, too, and the removal of one.
"""

import click

from statelog.cli.materialize import materializer_settings
from statelog.cli.output import confirm
from statelog.cli.session import Session, connected
from statelog.errors import NotFound
from statelog.operate.description import describe_log, subscriptions_listing
from statelog.operate.report import Report
from statelog.storage.claims import list_subscriptions, remove_subscription

_SUBSCRIPTIONS_HELP = """Show the subscriptions of the log NAME: readers that hold truncation back, also while they are
stopped.

A removed one holds nothing any more. Its reader is told when it asks next, and goes on only under another reader id."""


@click.command("describe", help="Show what the log NAME is, and its current status.")
@click.argument("name")
@connected
def command(session: Session, name: str) -> None:
    """Show a log."""
    with session.open_log(name) as log:
        session.output.report(describe_log(log, materializer_settings(session.config)))


@click.command("subscriptions", help=_SUBSCRIPTIONS_HELP)
@click.argument("name")
@click.option("--remove", "reader", metavar="READER", help="End the subscription of this reader.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="With --remove: show that subscription, and remove nothing.")
@connected
def subscriptions(session: Session, name: str, reader: str | None, yes: bool, dry_run: bool) -> None:
    """Show subscriptions, or remove one."""
    with session.open_log(name) as log:
        if reader is not None and dry_run:
            listing = subscriptions_listing(list_subscriptions(log.store, reader))
            if not listing.rows:
                raise NotFound(f"there is no subscription of reader {reader}", log=name, reader=reader)
            session.output.report(Report(f"would remove {reader}", {"would_remove": reader}, (listing,)))
            return
        if reader is None:
            session.output.report(Report(name, {}, (subscriptions_listing(list_subscriptions(log.store)),)))
            return
        if not yes:
            confirm(name, f"This ends the subscription of reader {reader}: what it did not read may be truncated.")
        was = remove_subscription(log, reader, "removed by command")
        done = "ended already" if was.ended else "removed"
        facts = {"reader": reader, "position": was.position, "ended": was.ended or done}
        session.output.report(Report(f"subscription of {reader}: {done}", facts))
