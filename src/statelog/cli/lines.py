"""Lines as an input: blocks of whole lines, each read by Arrow's JSON or CSV reader.

The mark is the number of bytes up to the end of the last row taken, and their SHA-256. So a file may grow between two
runs: the new rows are appended. A header is taken before the first row, and is part of every mark.

Invariant: a row is a line. Blocks whose rows and lines do not match are refused, so that a commit's mark is exact.
"""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterator
from io import BufferedReader
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.cli.row_readers import RowReader
from statelog.errors import InvalidChange, ValueTooLarge

BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"PAR1": "Parquet, which cannot be read from a pipe: name the file",
    b"\x1f\x8b": "gzip: unpack it, as in zcat FILE | statelog append LOG - --writer NAME",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it, as in zstdcat FILE | statelog append LOG - --writer NAME",
    b"BZh": "bzip2: unpack it, as in bzcat FILE | statelog append LOG - --writer NAME",
    b"\xfd7zXZ": "xz: unpack it, as in xzcat FILE | statelog append LOG - --writer NAME",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
    b"\xfe\xff": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
}
"""Other formats, by their first bytes, with the remedy for each."""


class _RowBlock(NamedTuple):
    """A text of whole rows.

    `newlines`: the number of line ends. `ends`: 0, then the end of each row; blank lines belong to the next row.
    `rows`: the text for Arrow, a row a line; None if a line cannot be a row.
    """

    text: bytes
    newlines: int
    ends: NDArray[np.int64]
    rows: bytes | None

    @classmethod
    def of(cls, text: bytes, reader: RowReader) -> Self:
        """Split a text into rows. Lines are examined one by one only if some are blank or not rows."""
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
        ends = np.concatenate([[0], newlines[: -1 if text.endswith(b"\n") else None], [len(text)]])
        if reader.are_rows(text, len(ends) - 1):
            return cls(text, len(newlines), ends, text)
        blank = re.escape(reader.blanks)
        row = re.compile(rb"[%b]*[^%b][^\n]*\n?" % (blank, blank))
        ends = np.array([0, *(row.end() for row in row.finditer(text))], np.int64)
        rows = b"\n".join(text[start:end].strip(reader.blanks) for start, end in pairwise(ends.tolist()))
        rows += b"\n" if text.endswith(b"\n") else b""
        return cls(text, len(newlines), ends, rows if reader.are_rows(rows, len(ends) - 1) else None)


class Lines:
    """Rows from `stream`; what a slow pipe has is read at once.

    `name`: the input's name in messages. `size_bytes`: its size, if known. `rows`, `read_bytes`: what was taken so far.
    """

    def __init__(
        self,
        stream: BufferedReader,
        reader: RowReader,
        *,
        name: str,
        size_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.kind = reader.kind
        self._stream = stream
        self._reader = reader
        self._name = name
        self._size_bytes = size_bytes
        self._block_bytes = block_bytes
        self._sha256 = hashlib.sha256()
        self.rows = 0
        self.read_bytes = 0
        self._lines = 0
        """The lines before the block."""
        self._is_begun = False
        self._block = _RowBlock.of(b"", reader)
        self._taken = 0

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes that were taken."""
        return self._sha256.hexdigest()

    @property
    def fraction(self) -> float | None:
        """The share of the bytes that was taken; None if the size is unknown."""
        return self.read_bytes / self._size_bytes if self._size_bytes else None

    def resume(self, rows: int, read_bytes: int, digest: str) -> str | None:
        """Skip what an earlier run took. Returns how this input differs from the earlier one; None if it does not.

        Raises InvalidChange for another format, and for a header that does not fit the log.
        """
        self._begin()
        while self.read_bytes < read_bytes:
            data = self._stream.read1(min(self._block_bytes, read_bytes - self.read_bytes))
            if not data:
                return "it is shorter"
            self._take_bytes(data)
            self._lines += data.count(b"\n")
        self.rows = rows
        return None if self.digest == digest else "its beginning differs"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows. Raises InvalidChange with the number of a broken line, after all rows before it."""
        for text in self._texts():
            block = self._block = _RowBlock.of(text, self._reader)
            self._taken = 0
            found = self._parsed(block)
            if isinstance(found, str):
                # The shortest prefix that cannot be read ends with the broken row.
                row = bisect_left(block.ends[1:], True, key=lambda end: isinstance(self._beginning(end), str))
                sound = self._beginning(block.ends[row])
                if not isinstance(sound, str):
                    yield sound
                raise self._broken(row)
            yield found
            self._lines += block.newlines

    def take(self, rows: int) -> None:
        """Count the next `rows` rows of the latest batch as taken."""
        start, end = self._block.ends[[self._taken, self._taken + rows]]
        self._take_bytes(self._block.text[start:end])
        self._taken += rows
        self.rows += rows

    def place(self, row: int) -> dict[str, int]:
        """Return the line of a row, from 1. `row` counts from the first row not taken."""
        through = self._block.text[: self._block.ends[self._taken + row + 1]]
        return {"line": self._lines + through.rstrip(self._reader.blanks).count(b"\n") + 1}

    def _parsed(self, block: _RowBlock) -> pa.RecordBatch | str:
        """Return the rows of a block as a batch, or the reason why they cannot be read."""
        if block.rows is None:
            return self._reader.no_row
        batch = self._reader.read(block.rows)
        is_whole = isinstance(batch, str) or batch.num_rows == len(block.ends) - 1
        return batch if is_whole else self._reader.not_one

    def _beginning(self, end: int) -> pa.RecordBatch | str:
        return self._parsed(_RowBlock.of(self._block.text[:end], self._reader))

    def _take_bytes(self, data: bytes) -> None:
        self._sha256.update(data)
        self.read_bytes += len(data)

    def _texts(self) -> Iterator[bytes]:
        """Yield texts of whole rows. Blank lines after the last row begin the next text."""
        self._begin()
        pieces, blanks = list[bytes](), self._reader.blanks
        while data := self._stream.read1(self._block_bytes):
            pieces.append(data)
            rest = b"".join(pieces) if b"\n" in data else b""  # A long line comes in many pieces.
            filled = len(rest[: rest.rfind(b"\n") + 1].rstrip(blanks))
            end = rest.find(b"\n", filled) + 1 if filled else 0
            if end:
                yield rest[:end]
                pieces = [rest[end:]]
            else:
                self._check_length(sum(map(len, pieces)))
        rest = b"".join(pieces)
        if rest.strip(blanks):
            yield rest

    def _begin(self) -> None:
        """Take a byte order mark and the header before the rows, once.

        Raises InvalidChange for another format, and for a header that does not fit the log.
        """
        if self._is_begun:
            return
        self._is_begun = True
        first = self._stream.peek()
        other = next((help_ for magic, help_ in _OTHERS.items() if first.startswith(magic)), None)
        if other is not None:
            raise InvalidChange(f"the input is not {self._reader.title} but {other}", input=self._name)
        if first.startswith(_BOM):
            self._take_bytes(self._stream.read(len(_BOM)))  # Not part of the first line.
        if first and self._reader.has_header:
            header = self._stream.readline(_MAX_LINE_BYTES + 1)
            self._check_length(len(header))
            try:
                self._reader.begin(header.removesuffix(b"\n").removesuffix(b"\r"))
            except InvalidChange as error:
                raise error.restated(input=self._name, line=1) from None
            self._take_bytes(header)
            self._lines = 1

    def _check_length(self, line_bytes: int) -> None:
        if line_bytes > _MAX_LINE_BYTES:
            problem = "a line is too long for a change"
            raise ValueTooLarge(problem, input=self._name, line=self._lines + 1, size_bytes=line_bytes)

    def _broken(self, row: int) -> InvalidChange:
        place, (start, end) = self.place(row - self._taken), self._block.ends[[row, row + 1]]
        problem = self._parsed(_RowBlock.of(self._block.text[start:end], self._reader))
        hint = "Fix the line and run the same command again; it resumes after the last commit"
        return InvalidChange(f"line {place['line']} is broken: {problem}", hint=hint, input=self._name, **place)
