"""Opens the input that the user named, a file or `-` for standard input, and derives the writer's name."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from statelog.cli.inputs.fields import FieldMapping, LogShape
from statelog.cli.inputs.input_source import InputSource
from statelog.cli.inputs.json_lines import JsonLines
from statelog.cli.inputs.parquet_file import ParquetInput
from statelog.errors import ConfigError, InvalidChange, NotFound, StoreUnavailable
from statelog.schemas.names import check_name

__all__ = ["STDIN", "open_input", "writer_name"]

STDIN = "-"
_PARQUET = b"PAR1"
_OTHERS = {
    _PARQUET: "Parquet, which cannot be read from a pipe: name the file",
    b"\x1f\x8b": "gzip: unpack it, as in zcat FILE | statelog append LOG - --writer NAME",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it, as in zstdcat FILE | statelog append LOG - --writer NAME",
    b"BZh": "bzip2: unpack it, as in bzcat FILE | statelog append LOG - --writer NAME",
    b"\xfd7zXZ": "xz: unpack it, as in xzcat FILE | statelog append LOG - --writer NAME",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
    b"\xfe\xff": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
}
"""What people try to append, by its first bytes, and what helps."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}")


def writer_name(given: str | None, source: str) -> str:
    """The writer's name: the one given, or the input's own in the letters that names may have.

    Raises ConfigError for standard input without a name, InvalidName.
    """
    if given is not None:
        return check_name("writer", given)
    if source == STDIN:
        raise ConfigError("standard input has no name", hint="Name the writer: --writer NAME, the same for every run")
    made = _NO_NAME.sub("-", Path(source).stem).strip("._-")[:128]
    if not made:
        raise ConfigError(
            "no writer's name can be made of the input's name", input=source, hint="Name it: --writer NAME"
        )
    return check_name("writer", made)


@contextmanager
def open_input(source: str, mapping: FieldMapping, shape: LogShape, stdin: BinaryIO) -> Generator[InputSource]:
    """Open an input: Parquet if the file begins as one, else JSON lines.

    Raises NotFound, StoreUnavailable for a file that cannot be read, InvalidChange for a damaged Parquet file.
    """
    if source == STDIN:
        yield JsonLines(_checked(stdin.read, "standard input"), mapping, shape, name="standard input")
        return
    path = Path(source)
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size if S_ISREG(path.stat().st_mode) else None
            if size is not None and file.read(len(_PARQUET)) == _PARQUET:
                yield ParquetInput(path, mapping)
                return
            if size is not None:
                file.seek(0)
            yield JsonLines(_checked(file.read, source), mapping, shape, name=source, size_bytes=size)
    except FileNotFoundError:
        raise NotFound("the input does not exist", input=source) from None
    except (PermissionError, IsADirectoryError) as error:
        raise StoreUnavailable("the input cannot be read", input=source, problem=str(error.strerror)) from None


def _checked(read: Callable[[int], bytes], name: str) -> Callable[[int], bytes]:
    """`read`, but what it gives first must not be the beginning of another format. Raises InvalidChange."""
    is_first = True

    def checked(size_bytes: int) -> bytes:
        nonlocal is_first
        data = read(size_bytes)
        found = next((help_ for magic, help_ in _OTHERS.items() if is_first and data.startswith(magic)), None)
        is_first = False
        if found is not None:
            raise InvalidChange(f"the input is not JSON lines but {found}", input=name)
        return data

    return checked
