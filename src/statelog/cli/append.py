"""`statelog append`: the changes of a file or a pipe, exactly once."""

import sys
import time
from typing import BinaryIO, cast

import click

from statelog.cli.appender import Appended, Appender, open_input, writer_name
from statelog.cli.exit_codes import INTERRUPTED
from statelog.cli.fields import Fields
from statelog.cli.output import Fact, Report, Unit
from statelog.cli.progress import open_bar
from statelog.cli.session import Session, connected
from statelog.cli.state_rows import BytesText
from statelog.errors import StatelogError
from statelog.formatting import show_count
from statelog.schemas.descriptor import HashRule
from statelog.storage.log.log import Log

_EVERY = 100_000
BYTES_TEXT = click.Choice([one.value for one in BytesText])
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
@click.option("--bytes", "bytes_text", type=BYTES_TEXT, default="utf8", show_default=True, help="How JSON holds bytes.")
@click.option("--ignore-unknown", is_flag=True, help="Drop fields that the log does not have.")
@click.option("--checkpoint-every", type=int, metavar="N", help=f"Commit every N rows. Default {_EVERY}.")
@click.option("--checkpoint-field", metavar="FIELD", help="Commit whenever this field changes.")
@connected
def command(
    session: Session,
    name: str,
    source: str,
    writer: str | None,
    key_field: str,
    value_field: str,
    op_field: str | None,
    delete_value: str | None,
    bytes_text: str,
    ignore_unknown: bool,
    checkpoint_every: int | None,
    checkpoint_field: str | None,
) -> None:
    """Append an input."""
    run = _Run(session, writer_name(writer, source))
    with session.open_log(name) as log:
        fields = Fields(
            key_type=log.descriptor.key_type,
            value_schema=log.value_schemas.newest(),
            named_groups=log.descriptor.hash_rule is HashRule.CALLER,
            key_field=key_field,
            value_field=value_field,
            op_field=op_field,
            delete_value=delete_value,
            checkpoint_every=_EVERY if checkpoint_every is None and checkpoint_field is None else checkpoint_every,
            checkpoint_field=checkpoint_field,
            bytes_text=BytesText(bytes_text),
            ignore_unknown=ignore_unknown,
        )
        run.append(log, source, fields)


class _Run:
    """One run of the command."""

    def __init__(self, session: Session, writer: str) -> None:
        self._session = session
        self._writer = writer
        self._done = Appended()
        self._started_s = time.monotonic()

    def append(self, log: Log, source: str, fields: Fields) -> None:
        """Append, and print how it went."""
        output = self._session.output
        try:
            with (
                open_input(source, fields, _stdin()) as rows,
                open_bar(f"append {self._writer}", as_json=output.as_json) as bar,
            ):
                Appender(self._writer, rows, fields, self._done).run(
                    log, lambda n: bar.update(rows.fraction, f"{show_count(n)} rows, {show_count(self._rate(n))}/s")
                )
        except KeyboardInterrupt:
            output.report(self._report("interrupted"))
            sys.exit(INTERRUPTED)
        except StatelogError as error:
            raise error.restated(committed_rows=self._done.rows_before + self._done.rows) from error
        output.report(self._report("complete"))

    def _rate(self, rows: int) -> float:
        return rows / max(1e-9, time.monotonic() - self._started_s)

    def _report(self, outcome: str) -> Report:
        done = self._done
        return Report(
            f"append by {self._writer}: {outcome}",
            (
                Fact("outcome", outcome),
                Fact("writer", self._writer),
                Fact("rows", done.rows, Unit.COUNT),
                Fact("rows_before", done.rows_before, Unit.COUNT),
                Fact("commits", done.commits, Unit.COUNT),
                Fact("checkpoint", done.checkpoint, Unit.COUNT),
                Fact("duration_s", time.monotonic() - self._started_s, Unit.SECONDS),
                Fact("rows_per_s", self._rate(done.rows), Unit.PER_S),
            ),
        )


def _stdin() -> BinaryIO:
    """Unbuffered, so that what a slow pipe has is read at once."""
    return cast("BinaryIO", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
