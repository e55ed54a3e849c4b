"""`statelog accept-loss`: accepts a loss by name, so that the log can go on."""

import re
from collections.abc import Sequence

import click

from statelog.cli.output import Output, confirm
from statelog.cli.session import Session, connected
from statelog.errors import ConfigError, IdentityChanged
from statelog.operate.losses import missing, shown_range, taken_along
from statelog.operate.report import Report
from statelog.schemas.ledger.records import LossRange
from statelog.storage.log.log import Log
from statelog.storage.log.loss import TopicLoss, accept_data_loss, accept_ledger_loss, accept_topic_loss

_RANGE = re.compile(r"(\d+):(\d+)-(\d+)\Z")


@click.command("accept-loss", help="Accept what the log NAME has lost, so that it can go on. What is gone stays gone.")
@click.argument("name")
@click.option("--range", "ranges", metavar="PARTITION:START-END", multiple=True, help="Offsets of the data topic.")
@click.option(
    "--ledger", "is_ledger", is_flag=True,
    help="The ledger lost its tail, or is gone (with or without the data topic): go on from the newest snapshot.",
)  # fmt: skip
@click.option("--reason", required=True, help="Why it is gone. Recorded in the ledger.")
@click.option("--operator", required=True, help="Who accepts it. Recorded in the ledger.")
@click.option(
    "--replication-factor", "key_of_replication_factor", type=int, help="Replicas of a recreated topic. Default 3."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the commits that go with the ranges, and accept nothing.")
@connected
def command(
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
        raise ConfigError("--ledger goes with neither --range nor --dry-run", hint="Give one of them")

    def ask(what: str) -> None:
        if not yes:
            confirm(name, f"This gives up {what}, of {name} below {session.config.root_url()}.")

    try:
        with session.open_log(name) as log:
            if is_ledger:
                ask("what its ledger lost; all its writers are fenced")
                offset = accept_ledger_loss(log, reason=reason, operator=operator)
            else:
                _show(session, log, lost, is_dry=dry_run)
                if dry_run:
                    return
                if not yes:
                    typed = " ".join(map(shown_range, lost))
                    confirm(typed, "This gives up these offsets for good, and what they hold.", "the ranges")
                offset = accept_data_loss(log, lost, reason=reason, operator=operator)
    except IdentityChanged:
        if not is_ledger:
            raise
        where = session.where()
        with (
            session.warnings_shown(),
            accept_topic_loss(
                name, where, reason=reason, operator=operator, confirm=lambda loss: ask(_topics(loss))
            ) as log,
        ):
            offset = log.describe().state.restarted
    session.output.report(Report(f"accepted a loss of {name}", {"accepted": name, "offset": offset}))


def _show(session: Session, log: Log, lost: Sequence[LossRange], *, is_dry: bool) -> None:
    """Show what goes with these ranges. Raises ConfigError if there are none, naming those that are lost."""
    if not lost:
        found = " ".join(f"--range {shown_range(one)}" for one in missing(log))
        hint = f"By the offsets of the topic this is lost: {found}" if found else "The error of a reader names offsets"
        raise ConfigError("give --range, once or more, or --ledger", hint=hint)
    typed = " ".join(map(shown_range, lost))
    report = Report(
        f"what goes with {typed} of {log.name}", {"log": log.name, "ranges": typed}, (taken_along(log, lost),)
    )
    Output(as_json=session.output.as_json, to_stderr=not is_dry).report(report)  # The result comes behind.


def _topics(loss: TopicLoss) -> str:
    topics = f"the ledger {loss.ledger} and the data topic {loss.data}"
    return f"all that was committed behind snapshot {loss.manifest} (position {loss.position}), as {topics}"


def _range(text: str) -> LossRange:
    found = _RANGE.match(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a range of offsets", hint="Write 3:100-120: partition 3, from 100, below 120"
        )
    return LossRange(*(int(number) for number in found.groups()))
