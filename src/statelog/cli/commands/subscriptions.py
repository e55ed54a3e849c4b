"""`statelog subscriptions`: the readers that hold truncation while they are stopped, too; and removes one."""

import click

from statelog.cli.screen.confirmation import confirm
from statelog.cli.screen.output import Fact, Listing, Report, Unit
from statelog.cli.session import Session, connected
from statelog.quantities import show_time
from statelog.schemas.snapshot.claims import SubscriptionFile, newest_files
from statelog.storage.held_subscription import StoredSubscriptions, list_subscriptions, remove_subscription

__all__ = ["command", "subscriptions_listing"]

_HELP = """Show the subscriptions of the log NAME: readers that hold truncation back, also while they are stopped.

A removed one holds nothing any more. Its reader is told when it asks next, and goes on only under another reader id."""


@click.command("subscriptions", help=_HELP)
@click.argument("name")
@click.option("--remove", "reader", metavar="READER", help="End the subscription of this reader.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def command(session: Session, name: str, reader: str | None, yes: bool) -> None:
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
    rows = [_row(one) for one in newest_files(found.files).values()]
    rows += [(one.reader, f"UNREADABLE: {one.problem}", None, None, None, None, one.path) for one in found.unreadable]
    return Listing("subscriptions", columns, tuple(sorted(rows)))


def _row(file: SubscriptionFile) -> tuple[str | int | None, ...]:
    found = file.subscription
    holds = "holds" if found.is_taken_up else "holds, not taken up"
    status = f"ended: {found.ended}" if found.ended else holds
    return (
        found.reader, status, found.position, found.holder, show_time(found.created_s), show_time(found.moved_s),
        found.path,
    )  # fmt: skip
