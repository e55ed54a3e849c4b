"""`statelog append`: append the changes of a file or a pipe, as Parquet, JSON lines or CSV, exactly once.

Takes batches from the input, appends them, and commits them with the input's progress. Invariants:
- A commit's metadata is the mark of exactly the rows that it and earlier commits added.
- The input and the settings alone determine the commits, not the batches in which the input came.
- The writer fences nobody before there is something to append.
- Before a commit, and within `MOST_ROWS` rows, some row must have each field that only an option names: a misspelt
  name would silently turn deletes into puts, or many commits into one.
"""

import hashlib
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from itertools import chain
from os import fsencode
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast
from zlib import crc32

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.cli.fields import Fields, column_of
from statelog.cli.lines import Lines
from statelog.cli.output import INTERRUPTED
from statelog.cli.progress import open_bar
from statelog.cli.row_readers import CsvRows, JsonRows, RowReader
from statelog.cli.session import Session, connected, log_argument
from statelog.cli.which_state import bytes_option
from statelog.errors import (
    CheckpointMismatch,
    ClosedError,
    ConfigError,
    InvalidChange,
    Misuse,
    NotFound,
    StatelogError,
    StoreUnavailable,
)
from statelog.formatting import show_count
from statelog.log import Log
from statelog.operate.report import Report
from statelog.producer.writer import Writer
from statelog.schemas.descriptor import HashRule
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.names import check_name

_EVERY = 100_000
_HELP = """Append the changes of INPUT to the log NAME, exactly once.

INPUT is a file of JSON lines, CSV or Parquet, or - for lines from standard input. After a crash, run it again: it
resumes right after its last commit, and refuses any other input."""
MOST_ROWS = 100_000
_STDIN = "-"
_PARQUET = b"PAR1"
_FORMATS = ("json", "csv", "tsv")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}")
_BATCH_ROWS = 65_536


@click.command("append", help=_HELP)
@log_argument
@click.argument("source", metavar="INPUT")
@click.option("--writer", help="The writer's name; default: the input's.")
@click.option(
    "--format", "lines_as", type=click.Choice(_FORMATS), help="Format of lines; default: by the name, or json."
)
@click.option("--key-field", default="key", show_default=True, help="The field that is the key.")
@click.option("--value-field", default="value", show_default=True, help="The value, in a log of bytes.")
@click.option("--op-field", help="The field that holds put or delete.")
@click.option("--delete-value", help="The value of --op-field in a delete; any other is a put.")
@click.option("--due-field", help="The field that says when a row is due: a time with a zone, or seconds since 1970.")
@bytes_option
@click.option("--ignore-unknown", is_flag=True, help="Drop fields that the log does not have.")
@click.option("--checkpoint-every", type=int, metavar="N", help=f"Commit every N rows. Default {_EVERY}.")
@click.option("--checkpoint-field", metavar="FIELD", help="Commit whenever this field changes.")
@connected
def command(
    session: Session, /, name: str, source: str, writer: str | None, lines_as: str | None, **options: Any
) -> None:
    """Append an input; the options have the names of `Fields`."""
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
            stdin: Any = sys.stdin.buffer
            if not hasattr(stdin, "peek"):
                stdin = BufferedReader(stdin)  # In a test.
            with (
                open_input(source, fields, stdin, lines_as) as rows,
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


class ParquetRows:
    """Rows of the Parquet file at `path`, which cannot grow: the digest covers the whole file. Raises InvalidChange.

    `rows`: the rows taken so far. `read_bytes`: the size of the file.
    """

    kind = "parquet"

    def __init__(self, path: Path, *, batch_rows: int = _BATCH_ROWS) -> None:
        self._path = path
        self._batch_rows = batch_rows
        self.rows = 0
        file = pa.OSFile(str(path))  # Opened once: the file that is hashed is the one that is read.
        self.read_bytes = file.size()
        self.digest = hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()
        with self._reading():
            self._file = pq.ParquetFile(file)

    @property
    def fraction(self) -> float | None:
        """The share of the rows that was taken."""
        return self.rows / max(1, self._file.metadata.num_rows)

    def resume(self, rows: int, read_bytes: int, digest: str) -> str | None:
        """Skip what an earlier run took, as `Lines.resume`."""
        self.rows = rows
        return None if (self.read_bytes, self.digest) == (read_bytes, digest) else "the file differs"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows. Raises InvalidChange if the file is damaged."""
        skip, groups = self.rows, list(range(self._file.num_row_groups))
        while groups and skip >= (first := self._file.metadata.row_group(groups[0]).num_rows):
            skip -= first
            groups.pop(0)
        with self._reading():
            for batch in self._file.iter_batches(self._batch_rows, row_groups=groups):
                if skip < batch.num_rows:
                    yield batch.slice(skip)
                skip = max(0, skip - batch.num_rows)

    def take(self, rows: int) -> None:
        """Count the next `rows` rows as taken."""
        self.rows += rows

    def place(self, row: int) -> dict[str, int]:
        """Return the number of a row in the file, from 1. `row` counts from the first row not taken."""
        return {"row": self.rows + row + 1}

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            problem = "the Parquet file cannot be read"
            raise InvalidChange(problem, input=str(self._path), problem=str(error)) from None


@dataclass(slots=True, kw_only=True)
class Appended:
    """The progress of a run: committed rows, rows of earlier runs, commits, and the last checkpoint."""

    rows: int = 0
    rows_before: int = 0
    commits: int = 0
    checkpoint: int = 0


class Appender:
    """Appends one input under one writer's name, and updates `done`."""

    def __init__(self, writer: str, source: Lines | ParquetRows, fields: Fields, done: Appended) -> None:
        self._name = writer
        self._source = source
        self._fields = fields
        self._done = done
        self._unseen = dict(fields.optional)
        self._pending = 0
        self._last: pa.Array | None = None

    def run(self, log: Log, on_rows: Callable[[int], None]) -> None:
        """Append what no earlier run committed; `on_rows` gets the number of rows after every piece.

        Raises CheckpointMismatch if an earlier run began another input, InvalidChange with the place of a row.
        """
        last = log.commits().get(self._name)
        if last is not None:
            self._done.checkpoint = last.checkpoint.id
            self.skip(last.metadata)
        batches = self._source.batches()
        first = next(batches, None)
        if first is None:
            return
        with Writer(log, self._name, expect=self._done.checkpoint) as writer:
            for batch in chain([first], batches):
                self.note_fields(batch)
                start = 0
                for point in self.points(batch):
                    self._append(writer, batch.slice(start, point - start), on_rows)
                    self._commit(writer)
                    start = point
                self._append(writer, batch.slice(start), on_rows)
            if self._pending:
                self._commit(writer)

    def mark(self) -> dict[str, str | int]:
        """Return the metadata of a commit: the progress in the input, and the input's digest."""
        return {
            "input.rows": self._source.rows,
            "input.bytes": self._source.read_bytes,
            "input.sha256": self._source.digest,
            "input.kind": self._source.kind,
            "input.mapping": self._fields.fingerprint(),
        }

    def points(self, batch: pa.RecordBatch) -> list[int]:
        """Return the rows of a batch after which to commit: at intervals, or where the checkpoint field changes."""
        every, name = self._fields.checkpoint_every, self._fields.checkpoint_field
        if every is not None:
            return list(range(every - self._pending, batch.num_rows + 1, every))
        if name is None or name not in batch.schema.names:
            return []
        column = column_of(batch, name, "checkpoint")
        before = column.slice(0, 1) if self._last is None else self._last
        self._last = column.slice(len(column) - 1)
        try:
            codes = pa.concat_arrays([before, column]).dictionary_encode().indices.fill_null(-1)
        except pa.ArrowNotImplementedError:
            problem = f"the field {name!r} is {column.type}, whose values cannot be compared"
            raise InvalidChange(problem, hint="Name another field with --checkpoint-field") from None
        return [point for point in np.flatnonzero(np.diff(codes)).tolist() if point + self._pending > 0]

    def skip(self, metadata: Metadata) -> None:
        """Skip the rows that the last commit's mark covers. Raises CheckpointMismatch if it is of another input."""
        match metadata:
            case {
                "input.kind": str(kind),
                "input.mapping": str(before),
                "input.rows": int(rows),
                "input.bytes": int(read_bytes),
                "input.sha256": str(digest),
            }:
                pass
            case _:
                raise self._mismatch("the last commit of this writer does not come from `statelog append`")
        now = self._fields.fingerprint()
        if before != now:
            problem = "this input was started with other options, which give its rows another meaning"
            raise self._mismatch(problem, before=before, now=now)
        # Set before the comparison, which may take long: a report after Ctrl-C needs it.
        self._done.rows_before = rows
        for option in ("--op-field", "--due-field"):  # An earlier commit with this mapping proves that they exist.
            self._unseen.pop(option, None)
        is_kind = kind == self._source.kind
        difference = self._source.resume(rows, read_bytes, digest) if is_kind else f"it was {kind}"
        if difference is not None:
            raise self._mismatch(f"this is not the input that this writer started with: {difference}")

    def _mismatch(self, problem: str, **facts: str) -> CheckpointMismatch:
        hint = "Use the same input with the same options, or choose another name with --writer"
        return CheckpointMismatch(problem, hint=hint, writer=self._name, committed_rows=self._done.rows_before, **facts)

    def _append(self, writer: Writer, piece: pa.RecordBatch, on_rows: Callable[[int], None]) -> None:
        if not piece.num_rows:
            return
        try:
            writer.append_batch(self._fields.to_changes(piece))
        except ClosedError:
            raise
        except Misuse as error:
            raise self._located(writer, piece, error) from None
        self._source.take(piece.num_rows)
        self._pending += piece.num_rows
        on_rows(self._done.rows + self._pending)

    def _commit(self, writer: Writer) -> None:
        self.require_seen()
        made = writer.commit(metadata=self.mark())
        self._done.checkpoint = made.checkpoint.id
        self._done.commits += 1
        self._done.rows += self._pending
        self._pending = 0

    def note_fields(self, batch: pa.RecordBatch) -> None:
        """Note which named fields the rows of a batch have. Raises InvalidChange if too many rows lack one."""
        for option, name in list(self._unseen.items()):
            if name in batch.schema.names and column_of(batch, name, "option").null_count < batch.num_rows:
                del self._unseen[option]
        if self._done.rows + self._pending + batch.num_rows > MOST_ROWS:
            self.require_seen()

    def require_seen(self) -> None:
        """Raise InvalidChange if no row so far had some named field."""
        for option, name in self._unseen.items():
            hint = f"Check {option}; for an input without the field, omit the option or raise --checkpoint-every"
            raise InvalidChange(f"no row of the input has the field {name!r}", hint=hint, option=option)

    def _located(self, writer: Writer, piece: pa.RecordBatch, error: Misuse) -> Misuse:
        """Return the error with the place of the first refused row, found by bisection.

        This appends the rows before it, which is harmless: this writer makes no further commit.
        """
        start, end = 0, piece.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            try:
                writer.append_batch(self._fields.to_changes(piece.slice(start, middle - start)))
                start = middle
            except Misuse as closer:
                end, error = middle, closer
        return error.restated(hint=error.hint, **self._source.place(start))


@contextmanager
def open_input(
    source: str, fields: Fields, stdin: BufferedReader, lines_as: str | None = None
) -> Generator[Lines | ParquetRows]:
    """Open an input: Parquet by the file's first bytes, or lines in the format of `lines_as` or of the file's name.

    Raises NotFound, StoreUnavailable for a file that cannot be read, InvalidChange for a damaged Parquet file,
    ConfigError.
    """
    path = Path(source)
    lines_as = lines_as or path.suffix.lower().removeprefix(".")
    if source == _STDIN:
        yield Lines(stdin, _row_reader(lines_as, fields), name="standard input")
        return
    try:
        with path.open("rb") as file:
            size = path.stat().st_size if S_ISREG(path.stat().st_mode) else None
            if size is not None and file.peek().startswith(_PARQUET):
                yield ParquetRows(path)
                return
            yield Lines(file, _row_reader(lines_as, fields), name=source, size_bytes=size)
    except FileNotFoundError:
        raise NotFound("the input does not exist", input=source) from None
    except (PermissionError, IsADirectoryError) as error:
        raise StoreUnavailable("the input cannot be read", input=source, problem=str(error.strerror)) from None


def _row_reader(lines_as: str, fields: Fields) -> RowReader:
    return CsvRows(fields, lines_as) if lines_as in ("csv", "tsv") else JsonRows(fields)


def writer_name(given: str | None, source: str) -> str:
    """Return the given name, or the input's name in the characters that names may have.

    A checksum is appended if the input's name is not ASCII. Raises ConfigError for standard input without a name,
    InvalidName.
    """
    if given is None and source == _STDIN:
        raise ConfigError("standard input has no name", hint="Pass --writer NAME, the same for every run")
    stem = Path(source).stem
    made = given if given is not None else _NO_NAME.sub("-", stem).strip("._-")[:128]
    if made and given is None and not stem.isascii():
        made = f"{made[:119]}-{crc32(fsencode(stem)):08x}"  # To tell Größe from Gräße.
    if not made:
        hint = "Pass --writer NAME"
        raise ConfigError("no writer's name can be made from the input's name", input=source, hint=hint)
    return check_name("writer", made)
