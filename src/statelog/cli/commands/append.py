"""`statelog append`: the changes of a file or a pipe, exactly once."""

import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, cast

import click
import pyarrow as pa

from statelog.cli.appender import Appended, Appender, CheckpointRule
from statelog.cli.exit_codes import INTERRUPTED
from statelog.cli.inputs.fields import BytesText, FieldMapping, LogShape
from statelog.cli.inputs.input_source import InputSource
from statelog.cli.inputs.mark import mark_of
from statelog.cli.inputs.open_input import open_input, writer_name
from statelog.cli.screen.output import Fact, Report, Unit
from statelog.cli.screen.progress import open_bar
from statelog.cli.session import Session, connected
from statelog.errors import CheckpointMismatch, StatelogError
from statelog.producer.writer import Writer
from statelog.quantities import show_count
from statelog.storage.log.log import Log

__all__ = ["command"]

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
    every = _EVERY if checkpoint_every is None and checkpoint_field is None else checkpoint_every
    mapping = FieldMapping(
        key_field=key_field,
        value_field=value_field,
        op_field=op_field,
        delete_value=delete_value,
        checkpoint_field=checkpoint_field,
        bytes_text=BytesText(bytes_text),
        ignore_unknown=ignore_unknown,
    )
    _Run(session, writer_name(writer, source), mapping, CheckpointRule(every=every, field=checkpoint_field)).run(
        name, source
    )


class _Run:
    """One run of the command."""

    def __init__(self, session: Session, writer: str, mapping: FieldMapping, rule: CheckpointRule) -> None:
        self._session = session
        self._writer = writer
        self._mapping = mapping
        self._rule = rule
        self._appended = Appended()
        self._started_s = time.monotonic()

    def run(self, name: str, source: str) -> None:
        """Append, and print how it went."""
        with self._session.open_log(name) as log:
            shape = LogShape.of(log.descriptor, log.value_schemas.newest())
            try:
                with open_input(source, self._mapping, shape, _stdin()) as rows:
                    self._append(log, rows, shape)
            except KeyboardInterrupt:
                self._session.output.report(self._report("interrupted"))
                sys.exit(INTERRUPTED)
            except StatelogError as error:
                raise self._standing(error) from error
        self._session.output.report(self._report("complete"))

    def _append(self, log: Log, source: InputSource, shape: LogShape) -> None:
        """Nothing is fenced before there is something to append."""
        self._resume(log, source)
        batches = source.batches()
        first = next(batches, None)
        if first is None:
            return
        with (
            open_bar(f"append {self._writer}", as_json=self._session.output.as_json) as bar,
            Writer(log, self._writer, expect=self._appended.checkpoint) as writer,
        ):
            appender = Appender(
                writer,
                source,
                self._mapping,
                shape,
                self._rule,
                self._appended,
                lambda rows: bar.update(source.fraction, f"{show_count(rows)} rows, {show_count(self._rate(rows))}/s"),
            )
            for batch in _with_first(first, batches):
                appender.append(batch)
            appender.finish()

    def _resume(self, log: Log, source: InputSource) -> None:
        """Skip what this writer has committed. Raises CheckpointMismatch if that was another input."""
        ledger = log.ledger.newest_client()
        try:
            ledger.read_end()
            last = ledger.fold.last_commit(self._writer)
        finally:
            ledger.close()
        if last is None:
            return
        mark = mark_of(last.metadata, self._writer)
        self._check_mapping(mark.mapping)
        # Known now, and true whatever the comparison finds: it may take long, and Ctrl-C asks what counts.
        self._appended.rows_before = mark.rows
        self._appended.checkpoint = last.checkpoint.id
        source.resume(mark)

    def _check_mapping(self, before: str) -> None:
        now = self._mapping.fingerprint()
        if before != now:
            raise CheckpointMismatch(
                "this input was started with other options, under which its rows mean something else",
                writer=self._writer,
                before=before,
                now=now,
                hint="Use the same options as before, or choose another name with --writer",
            )

    def _standing(self, error: StatelogError) -> StatelogError:
        """The error with what counts of this input so far."""
        rows = self._appended.rows_before + self._appended.rows
        return error.restated(committed_rows=rows)

    def _rate(self, rows: int) -> float:
        return rows / max(1e-9, time.monotonic() - self._started_s)

    def _report(self, outcome: str) -> Report:
        done = self._appended
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


def _with_first(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _stdin() -> BinaryIO:
    """Unbuffered, so that what a slow pipe has is read at once."""
    return cast("BinaryIO", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
