"""Commands that show logs, under the same names of facts.

`statelog describe`: a log's properties and status. `list`: the logs below a root, a row each. `watch`: a line on one
log at intervals. `subscriptions`: the readers that hold truncation back even while stopped, and their removal.
"""

import sys

import click

from statelog.cli.output import confirm, exit_code
from statelog.cli.session import Session, connected, log_argument, materializer_settings, stopped_by_signals
from statelog.environment import current_environment
from statelog.errors import NotFound, StatelogError
from statelog.log import Log
from statelog.log.config_keys import duration_s
from statelog.log.where import log_names, one_client
from statelog.operate.description import describe_log, subscriptions_listing
from statelog.operate.report import Listing, Report, shown, words
from statelog.reading import list_subscriptions, remove_subscription

_SUBSCRIPTIONS_HELP = """Show the subscriptions of the log NAME: readers that hold truncation back even while they are
stopped.

A removed subscription holds nothing back. Its reader gets an error at its next read, and can continue only under
another reader id."""
_SHOWN = (
    "verdict", "position", "snapshot_bytes", "lag_commits", "lag_bytes", "lag_age_s", "restore_estimate_s",
    "truncation_held_by",
)  # fmt: skip
_LIST_HELP = """Show the logs below the root: whether rounds keep up, the size, the commits in no snapshot, and the
estimated time of a restore.

A log that cannot be described has its error in the row; the exit code is that of the first error."""
_WATCH_HELP = "Show the progress of the log NAME, a line every --interval, until Ctrl-C or SIGTERM."


@click.command("list", help=_LIST_HELP)
@connected
def list_logs(session: Session) -> None:
    """List logs."""
    where = session.where()
    rows: list[tuple[object, ...]] = []
    errors: list[StatelogError] = []
    with session.warnings_shown(), one_client(where) as shared:
        for name in log_names(where):
            try:
                settings = materializer_settings(session.config, name)
                facts = describe_log(Log.open(name, shared), settings).facts  # One client for all logs.
            except NotFound:
                continue  # A directory of something else.
            except StatelogError as error:
                errors.append(error)
                rows.append((name, *[None] * len(_SHOWN), f"{type(error).__name__}: {error.message}"))
            else:
                rows.append((name, *[facts[one] for one in _SHOWN], None))
    listing = Listing("logs", ("log", *_SHOWN, "problem"), rows, ("position", "lag_bytes", "truncation_held_by"))
    session.output.report(Report("logs", {"root": session.config.root_url()}, (listing,)))
    if errors:
        sys.exit(exit_code(errors[0]))


@click.command("watch", help=_WATCH_HELP)
@log_argument
@click.option("--interval", default="5s", show_default=True, metavar="TIME", help="The time between two lines.")
@click.option("--times", type=click.IntRange(1), metavar="N", help="End after N lines.")
@connected
def watch(session: Session, name: str, interval: str, times: int | None) -> None:
    """Watch a log."""
    settings, every_s = materializer_settings(session.config, name), duration_s(interval)
    clock = current_environment().clock
    before: tuple[float, int] | None = None
    with session.open_log(name) as log, stopped_by_signals() as control:
        while not control.is_stopped:
            found, now_s = describe_log(log, settings).facts, clock()
            position = int(str(found["position"]))
            rate = None if before is None else (position - before[1]) / max(now_s - before[0], 1e-9)
            before = now_s, position
            facts = {one: found[one] for one in (*_SHOWN, "newest_manifest")} | {"ledger_records_per_s": rate}
            line = ", ".join(f"{words(fact)} {shown(fact, value)}" for fact, value in facts.items())
            session.output.event(line, {"log": name, **facts})
            times = None if times is None else times - 1
            if times == 0 or control.wait(every_s):
                break


@click.command("describe", help="Show the properties and the status of the log NAME.")
@log_argument
@connected
def command(session: Session, name: str) -> None:
    """Show a log."""
    with session.open_log(name) as log:
        session.output.report(describe_log(log, materializer_settings(session.config, name)))


@click.command("subscriptions", help=_SUBSCRIPTIONS_HELP)
@log_argument
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
            confirm(name, f"This ends the subscription of reader {reader}: what it has not read may be truncated.")
        was = remove_subscription(log, reader, "removed by command")
        done = "ended already" if was.ended else "removed"
        facts = {"reader": reader, "position": was.position, "ended": was.ended or done}
        session.output.report(Report(f"subscription of {reader}: {done}", facts))
