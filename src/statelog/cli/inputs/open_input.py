"""Opens the input that the user named, a file or `-` for standard input, as Parquet or JSON lines."""

import hashlib
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.cli.inputs.fields import Fields
from statelog.cli.inputs.json_lines import JsonLines
from statelog.errors import ConfigError, InvalidChange, NotFound, StoreUnavailable
from statelog.schemas.names import check_name

__all__ = ["ParquetRows", "open_input", "writer_name"]

_STDIN = "-"
_PARQUET = b"PAR1"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}")
_BATCH_ROWS = 65_536


class ParquetRows:
    """Rows of the file at `path`, which cannot grow: the digest is that of the whole file. Raises InvalidChange.

    `rows` were taken; `read_bytes` is the size of the file.
    """

    kind = "parquet"

    def __init__(self, path: Path, *, batch_rows: int = _BATCH_ROWS) -> None:
        self._path = path
        self._batch_rows = batch_rows
        self.rows = 0
        self.read_bytes = path.stat().st_size
        with path.open("rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    @property
    def fraction(self) -> float | None:
        """How much of the rows was taken."""
        return self.rows / max(1, self._file.metadata.num_rows)

    def resume(self, rows: int, read_bytes: int, digest: str) -> str | None:
        """As `JsonLines.resume`."""
        self.rows = rows
        return None if (self.read_bytes, self.digest) == (read_bytes, digest) else "the file differs"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind. Raises InvalidChange if the file is damaged."""
        skip, groups = self.rows, list(range(self._file.num_row_groups))
        while groups and skip >= (first := self._file.metadata.row_group(groups[0]).num_rows):
            skip -= first
            groups.pop(0)
        try:
            for batch in self._file.iter_batches(self._batch_rows, row_groups=groups):
                behind = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - behind.num_rows
                if behind.num_rows:
                    yield behind
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def take(self, rows: int) -> None:
        """Count the next `rows` rows as taken."""
        self.rows += rows

    def place(self, row: int) -> dict[str, int]:
        """The number of a row in the file, from 1: `row` counts from the first one not taken."""
        return {"row": self.rows + row + 1}

    def _unreadable(self, error: Exception) -> InvalidChange:
        return InvalidChange("the Parquet file cannot be read", input=str(self._path), problem=str(error))


@contextmanager
def open_input(source: str, fields: Fields, stdin: BinaryIO) -> Generator[JsonLines | ParquetRows]:
    """Open an input: Parquet if the file begins as one, else JSON lines.

    Raises NotFound, StoreUnavailable for a file that cannot be read, InvalidChange for a damaged Parquet file,
    ConfigError.
    """
    if source == _STDIN:
        yield JsonLines(stdin.read, fields, name="standard input")
        return
    path = Path(source)
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size if S_ISREG(path.stat().st_mode) else None
            if size is not None and file.read(len(_PARQUET)) == _PARQUET:
                yield ParquetRows(path)
                return
            if size is not None:
                file.seek(0)
            yield JsonLines(file.read, fields, name=source, size_bytes=size)
    except FileNotFoundError:
        raise NotFound("the input does not exist", input=source) from None
    except (PermissionError, IsADirectoryError) as error:
        raise StoreUnavailable("the input cannot be read", input=source, problem=str(error.strerror)) from None


def writer_name(given: str | None, source: str) -> str:
    """The writer's name: the one given, or the input's own in the letters that names may have.

    Raises ConfigError for standard input without a name, InvalidName.
    """
    if given is None and source == _STDIN:
        raise ConfigError("standard input has no name", hint="Name the writer: --writer NAME, the same for every run")
    made = given if given is not None else _NO_NAME.sub("-", Path(source).stem).strip("._-")[:128]
    if not made:
        hint = "Name it: --writer NAME"
        raise ConfigError("no writer's name can be made of the input's name", input=source, hint=hint)
    return check_name("writer", made)
