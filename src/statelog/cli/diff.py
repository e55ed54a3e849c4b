"""`statelog diff`: the keys that differ between two states of a log, with both values."""

import time
from collections import Counter

import click

from statelog.cli.session import Session, connected
from statelog.cli.which_state import From, bytes_option, lease_option, parse_from
from statelog.errors import ConfigError
from statelog.formatting import as_json, in_text
from statelog.operate.difference import difference
from statelog.operate.report import Report
from statelog.operate.rows import BytesText, json_column
from statelog.recovery import AtPosition, AtTime, RecoverySettings

_HELP = """Show the keys of the log NAME whose value is another one at TO than at FROM, a line each, and both values.

FROM and TO are ledger positions, times in ISO 8601, or how long ago, such as 10min; without TO it is now. What was
committed in between has to be held by the log still."""
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@click.command("diff", help=_HELP)
@click.argument("name")
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="[TO]", required=False)
@bytes_option
@lease_option
@connected
def command(session: Session, name: str, start: str, end: str | None, bytes_text: BytesText, lease: bool) -> None:
    """Compare two states."""
    settings = RecoverySettings(holder="statelog diff", lease=lease)
    first, last = _at(start), None if end is None else _at(end)
    with session.open_log(name) as log:
        found = difference(log, first, last, settings)
    shown = bytes_text if session.output.as_json else None
    keys, after, before = (
        [one for chunk in column.chunks for one in json_column(chunk, shown)]
        for column in (found.after.column("key"), found.after.column("value"), found.before.column("value"))
    )
    counts: Counter[str] = Counter()
    for key, old, new in zip(keys, before, after, strict=True):
        kind = "added" if old is None else "removed" if new is None else "changed"
        counts[kind] += 1
        text = " -> ".join(in_text(one) for one in (old, new) if one is not None).replace("\n", "\\n")
        fields = {"event": kind, "key": key, "before": old, "after": new}
        session.output.event(f"{_SIGNS[kind]} {in_text(key)} {text}", fields)
    facts = {"start_position": found.start_position, "end_position": found.end_position}
    facts |= {kind: counts[kind] for kind in _SIGNS}
    if session.output.as_json:
        session.output.line(as_json({"event": "end", **facts}))
    else:
        session.output.report(Report(f"difference of {name}", facts))


def _at(text: str) -> AtPosition | AtTime:
    found = parse_from(text, time.time())
    if isinstance(found, From):
        raise ConfigError(
            f"{text!r} names no state", hint="Write a position, a time such as 2030-01-31T12:00, or 10min"
        )
    return found
