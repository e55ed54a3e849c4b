"""JSON lines as an input: a stream of bytes, read in blocks of whole lines.

The mark is the number of bytes up to the end of the last row taken, and their SHA-256. So a file may have grown since
it was read the last time: what is new is appended.
"""

import hashlib
from collections.abc import Callable, Iterator

import pyarrow as pa

from statelog.cli.inputs.fields import FieldMapping, LogShape
from statelog.cli.inputs.json_parse import BrokenRow, LineParser
from statelog.cli.inputs.line_index import index_lines
from statelog.cli.inputs.mark import InputMark, other_input
from statelog.errors import InvalidChange, ValueTooLarge

__all__ = ["BLOCK_BYTES", "KIND", "JsonLines"]

KIND = "json-lines"
BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_NO_INDEX = index_lines(b"")


class JsonLines:
    """Reads rows from `read`, which gives at most so many bytes, and none at the end.

    `name` is the input's, for messages; `size_bytes` its size if it is known.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        mapping: FieldMapping,
        shape: LogShape,
        *,
        name: str,
        size_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._read = read
        self._mapping = mapping
        self._parser = LineParser(mapping, shape)
        self._name = name
        self._size_bytes = size_bytes
        self._block_bytes = block_bytes
        self._digest = hashlib.sha256()
        self._rows = 0
        self._hashed_bytes = 0
        self._read_bytes = 0
        self._lines = 0
        self._block = b""
        self._blank = b""
        self._index = _NO_INDEX
        self._taken = 0

    @property
    def mark(self) -> InputMark:
        """How far it was taken."""
        return InputMark(
            kind=KIND,
            mapping=self._mapping.fingerprint(),
            rows=self._rows,
            size_bytes=self._hashed_bytes,
            digest=self._digest.hexdigest(),
        )

    @property
    def fraction(self) -> float | None:
        """How much of the bytes was taken."""
        return self._hashed_bytes / self._size_bytes if self._size_bytes else None

    def resume(self, mark: InputMark) -> None:
        """Skip what `mark` covers. Raises CheckpointMismatch if it is another input."""
        if mark.kind != KIND:
            raise other_input(f"it was {mark.kind}", mark, input=self._name)
        while self._hashed_bytes < mark.size_bytes:
            data = self._read(min(self._block_bytes, mark.size_bytes - self._hashed_bytes))
            if not data:
                raise other_input("it is shorter", mark, input=self._name, size_bytes=self._hashed_bytes)
            self._hash(data)
            self._lines += data.count(b"\n")
        if self._digest.hexdigest() != mark.digest:
            raise other_input("its beginning differs", mark, input=self._name)
        self._rows = mark.rows
        self._read_bytes = mark.size_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind the mark. Raises InvalidChange with the number of a broken line, after all rows before it."""
        for block in self._blocks():
            self._block, self._index, self._taken = block, index_lines(block), 0
            batch, broken = self._parser.parse(block, self._index)
            if batch is not None:
                yield batch
            if broken is not None:
                raise self._error(broken)
            # Blank lines behind the last row come before the next one's bytes.
            self._blank += block[int(self._index.ends[-1]) :] if self._taken else block
            self._lines += self._index.lines

    def take(self, rows: int) -> None:
        """Move the mark behind the next `rows` rows."""
        start = int(self._index.ends[self._taken - 1]) if self._taken else 0
        self._taken += rows
        end = int(self._index.ends[self._taken - 1])
        self._hash(self._blank + self._block[start:end])
        self._blank = b""
        self._rows += rows

    def place(self, row: int) -> dict[str, int]:
        """The line of a row, from 1."""
        return {"line": self._lines + int(self._index.numbers[self._taken + row]) + 1}

    def _hash(self, data: bytes) -> None:
        self._digest.update(data)
        self._hashed_bytes += len(data)

    def _blocks(self) -> Iterator[bytes]:
        """Blocks that end with a line end; only the last one may lack it."""
        rest = b""
        while data := self._read(self._block_bytes):
            self._read_bytes += len(data)
            if self._read_bytes == len(data) and data.startswith(_BOM):
                self._hash(_BOM)  # Some programs begin a file with this mark. It is no part of the first line.
                data = data.removeprefix(_BOM)
            cut = data.rfind(b"\n") + 1
            if cut:
                yield rest + data[:cut]
                rest = data[cut:]
            else:
                rest += data
            if len(rest) > _MAX_LINE_BYTES:
                raise ValueTooLarge(
                    "a line is too long for a change", input=self._name, line=self._lines + 1, size_bytes=len(rest)
                )
        if rest:
            yield rest

    def _error(self, broken: BrokenRow) -> InvalidChange:
        line = self._lines + int(self._index.numbers[broken.row]) + 1
        return InvalidChange(
            f"line {line} is broken: {broken.problem}",
            input=self._name,
            line=line,
            hint="Fix the line and run the same command again; it resumes after the last commit",
        )
