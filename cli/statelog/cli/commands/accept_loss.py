"""`statelog accept-loss`: a person gives up what a log has lost, by name, so that it can go on."""

import re

import click

from statelog.cli.confirming import confirm
from statelog.cli.output import Fact, Report
from statelog.cli.session import Session, connected
from statelog.schemas.errors import ConfigError
from statelog.schemas.ledger import LossRange
from statelog.storage.ledger_loss import accept_ledger_loss

__all__ = ["command"]

_RANGE = re.compile(r"(\d+):(\d+)-(\d+)\Z")


@click.command("accept-loss", help="Give up what the log NAME has lost, so that it can go on. What is gone stays gone.")
@click.argument("name")
@click.option("--range", "ranges", metavar="PARTITION:START-END", multiple=True, help="Offsets of the data topic.")
@click.option("--ledger", "is_ledger", is_flag=True, help="The ledger lost its tail: go on from the newest snapshot.")
@click.option("--reason", required=True, help="Why it is gone. Stays in the ledger.")
@click.option("--operator", required=True, help="Who says so. Stays in the ledger.")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@connected
def command(
    session: Session, name: str, ranges: tuple[str, ...], is_ledger: bool, reason: str, operator: str, yes: bool
) -> None:
    """Accept a loss."""
    lost = [_range(text) for text in ranges]
    if bool(lost) == is_ledger:
        raise ConfigError("what is lost is either --range, once or more, or --ledger")
    with session.open_log(name) as log:
        what = "what its ledger lost; all its writers are fenced" if is_ledger else f"the offsets {', '.join(ranges)}"
        if not yes:
            confirm(name, f"This gives up {what}, of {name} below {log.store.url}.")
        if is_ledger:
            offset = accept_ledger_loss(log, reason=reason, operator=operator)
        else:
            offset = log.accept_loss(lost, reason=reason, operator=operator)
    session.output.report(Report(f"accepted a loss of {name}", (Fact("accepted", name), Fact("offset", offset))))


def _range(text: str) -> LossRange:
    found = _RANGE.match(text)
    if found is None:
        raise ConfigError(f"{text!r} is no range of offsets", hint="Write 3:100-120: partition 3, from 100, below 120")
    return LossRange(*(int(number) for number in found.groups()))
