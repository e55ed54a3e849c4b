"""`statelog append`: the changes of a file or a pipe, exactly once."""

import sys
import time
from dataclasses import asdict
from typing import Any, BinaryIO, cast

import click

from statelog.cli.appender import Appended, Appender, open_input, writer_name
from statelog.cli.exit_codes import INTERRUPTED
from statelog.cli.fields import Fields
from statelog.cli.progress import open_bar
from statelog.cli.session import Session, connected
from statelog.cli.which_state import bytes_option
from statelog.errors import StatelogError
from statelog.formatting import show_count
from statelog.operate.report import Report
from statelog.schemas.descriptor import HashRule

_EVERY = 100_000
_HELP = """Append the changes of INPUT to the log NAME, exactly once.

INPUT is a file of JSON lines or Parquet, or - for JSON lines from standard input. After a crash, run it again: it
resumes right after its last commit, and refuses any other input."""


@click.command("append", help=_HELP)
@click.argument("name")
@click.argument("source", metavar="INPUT")
@click.option("--writer", help="The writer's name; default: the input's.")
@click.option("--key-field", default="key", show_default=True, help="The field that is the key.")
@click.option("--value-field", default="value", show_default=True, help="The value, in a log of bytes.")
@click.option("--op-field", help="The field that holds put or delete.")
@click.option("--delete-value", help="The value of --op-field in a delete; all else is a put.")
@bytes_option
@click.option("--ignore-unknown", is_flag=True, help="Drop fields that the log does not have.")
@click.option("--checkpoint-every", type=int, metavar="N", help=f"Commit every N rows. Default {_EVERY}.")
@click.option("--checkpoint-field", metavar="FIELD", help="Commit whenever this field changes.")
@connected
def command(session: Session, /, name: str, source: str, writer: str | None, **options: Any) -> None:
    """Append an input; the options are named as the parts of `Fields`."""
    if options["checkpoint_every"] is None and options["checkpoint_field"] is None:
        options["checkpoint_every"] = _EVERY
    writer, done, started_s, output = writer_name(writer, source), Appended(), time.monotonic(), session.output

    def rate(rows: int) -> float:
        return rows / max(1e-9, time.monotonic() - started_s)

    def report(outcome: str) -> None:
        timed = {"duration_s": time.monotonic() - started_s, "rows_per_s": rate(done.rows)}
        facts = {"outcome": outcome, "writer": writer, **asdict(done), **timed}
        output.report(Report(f"append by {writer}: {outcome}", facts))

    with session.open_log(name) as log:
        fields = Fields(
            key_type=log.descriptor.key_type,
            value_schema=log.value_schemas.newest(),
            named_groups=log.descriptor.hash_rule is HashRule.CALLER,
            **options,
        )
        try:
            with (
                open_input(source, fields, _stdin()) as rows,
                open_bar(f"append {writer}", as_json=output.as_json) as bar,
            ):
                Appender(writer, rows, fields, done).run(
                    log, lambda n: bar.update(rows.fraction, f"{show_count(n)} rows, {show_count(rate(n))}/s")
                )
        except KeyboardInterrupt:
            report("interrupted")
            sys.exit(INTERRUPTED)
        except StatelogError as error:
            raise error.restated(committed_rows=done.rows_before + done.rows) from error
        report("complete")


def _stdin() -> BinaryIO:
    """Unbuffered, so that what a slow pipe has is read at once."""
    return cast("BinaryIO", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
