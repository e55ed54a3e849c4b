"""`statelog get`: the committed values of some keys; `statelog diff`: the keys that differ between two states."""

import sys
import time
from collections import Counter, defaultdict
from typing import Any

import click
import numpy as np
import pyarrow as pa

from statelog.cli.output import ABSENT
from statelog.cli.session import Session, connected, log_argument
from statelog.cli.which_state import From, at_options, bytes_option, due_option, lease_option, parse_from
from statelog.errors import ConfigError
from statelog.formatting import as_json, clean, in_text
from statelog.operate.lookup import difference, groups_of, look_up
from statelog.operate.report import Report
from statelog.operate.rows import BytesText, json_column, json_lines, read_keys, value_column
from statelog.reading import At
from statelog.recovery import AtPosition, AtTime, RecoverySettings
from statelog.schemas.arrays import gathered
from statelog.schemas.descriptor import HashRule

_HELP = """Read the committed values of the KEYs of the log NAME.

One key: its plain value, a typed one as JSON. Several keys, --due or --json: a line of JSON for each key that exists,
as `recover --to-json` writes it. A missing key has no line, and the exit code is 7. Only the key groups of the keys are
read. If the log's callers name key groups, as in a worker's log, all are read unless --key-group names one. Put `--`
before negative numbers."""
_DIFF_HELP = """Show the keys of the log NAME whose values differ between FROM and TO, a line each, with both values.

FROM and TO are ledger positions, times in ISO 8601, or durations ago, such as 10min; the default of TO is now. The log
must still hold the commits in between."""
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@click.command("get", help=_HELP)
@log_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@bytes_option
@click.option("--key-group", type=int, metavar="N", help="The key group of all keys, if the log's callers name it.")
@at_options
@click.option("--at-least", type=click.IntRange(0), metavar="N", help="A state at this ledger position or later.")
@click.option("--barrier", is_flag=True, help="A state no older than now; writes a void record to the ledger.")
@due_option
@lease_option
@connected
def command(
    session: Session,
    name: str,
    keys: tuple[str, ...],
    bytes_text: BytesText,
    key_group: int | None,
    at: At | None,
    at_least: int | None,
    barrier: bool,
    due: bool,
    lease: bool,
) -> None:
    """Get some keys."""
    if at is not None and (barrier or at_least is not None):
        raise ConfigError(
            "--at-least and --barrier are for the newest state", hint="Omit both, or name no earlier state"
        )
    with session.open_log(name) as log:
        wanted = read_keys(keys, log.descriptor.key_type, bytes_text)
        groups = groups_of(wanted, key_group, log.descriptor)
        settings = RecoverySettings(holder="statelog get", lease=lease)
        result = look_up(
            log, wanted, groups, at=at, at_least=at_least or 0, barrier=barrier, due=due, settings=settings
        )
        found, missing = _found(result.rows, keys, wanted)
        for text in result.warnings:
            session.output.warning(text)
        with_groups = log.descriptor.hash_rule is HashRule.CALLER
    if len(keys) == 1 and found.num_rows < 2 and not (due or session.output.as_json):
        _print_value(found, bytes_text, on_terminal=session.output.on_terminal)
        if with_groups and key_group is None and found.num_rows:
            session.output.notice(f"key group {found.column('key_group')[0]}")
    else:
        for line in json_lines(found, bytes_text, with_groups=with_groups):
            session.output.line(line)
    if missing:
        session.output.notice(f"not found: {', '.join(missing)}")
        sys.exit(ABSENT)


def _found(rows: pa.Table, texts: tuple[str, ...], keys: pa.Array) -> tuple[pa.Table, list[str]]:
    """Return the rows in the order of the named keys, and the texts of missing keys.

    A key that is named twice has its rows twice. A key may have rows in several key groups if callers name them.
    """
    rows_by_key = defaultdict[Any, list[int]](list)
    for row, key in enumerate(rows.column("key").to_pylist()):
        rows_by_key[key].append(row)
    wanted: list[Any] = keys.to_pylist()
    missing = [text for text, key in zip(texts, wanted, strict=True) if key not in rows_by_key]
    chosen = [row for key in wanted for row in rows_by_key.get(key, ())]
    return gathered(rows, np.array(chosen, np.int64)), missing


def _print_value(found: pa.Table, bytes_text: BytesText, *, on_terminal: bool) -> None:
    """Print the value of one key, if it exists: raw bytes, but on a terminal without control characters."""
    rows = found.combine_chunks().to_batches()
    if not rows:
        return
    column = rows[0].column("value")
    is_opaque = not pa.types.is_struct(column.type)
    if is_opaque and bytes_text is BytesText.UTF8 and not on_terminal:
        sys.stdout.buffer.write(column.cast(pa.binary())[0].as_py() + b"\n")
        sys.stdout.buffer.flush()
        return
    (value,) = json_column(column, None if is_opaque and bytes_text is BytesText.UTF8 else bytes_text)
    click.echo(clean(in_text(value)))


@click.command("diff", help=_DIFF_HELP)
@log_argument
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="[TO]", required=False)
@bytes_option
@lease_option
@connected
def diff(session: Session, name: str, start: str, end: str | None, bytes_text: BytesText, lease: bool) -> None:
    """Compare two states."""
    settings = RecoverySettings(holder="statelog diff", lease=lease)
    first, last = _at(start), None if end is None else _at(end)
    with session.open_log(name) as log:
        found = difference(log, first, last, settings)
    shown = bytes_text if session.output.as_json else None
    keys = [one for chunk in found.after.column("key").chunks for one in json_column(chunk, shown)]
    after, before = (
        [one for chunk in side.column("value").chunks for one in value_column(chunk, shown)]
        for side in (found.after, found.before)
    )
    counts: Counter[str] = Counter()
    for key, old, new in zip(keys, before, after, strict=True):
        kind = "added" if old is None else "removed" if new is None else "changed"
        counts[kind] += 1
        values = " -> ".join(in_text(one) for one in (old, new) if one is not None)
        text = f"{_SIGNS[kind]} {in_text(key)} {values}".replace("\n", "\\n")
        session.output.event(text, {"event": kind, "key": key, "before": old, "after": new})
    facts = {"start_position": found.start_position, "end_position": found.end_position}
    facts |= {kind: counts[kind] for kind in _SIGNS}
    if session.output.as_json:
        session.output.line(as_json({"event": "end", **facts}))
    else:
        session.output.report(Report(f"difference of {name}", facts))


def _at(text: str) -> AtPosition | AtTime:
    found = parse_from(text, time.time())
    if isinstance(found, From):
        hint = "Write a position, a time such as 2030-01-31T12:00, or 10min"
        raise ConfigError(f"{text!r} does not name a state", hint=hint)
    return found
