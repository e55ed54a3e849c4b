"""The local disk: its failures as typed errors with hints, and durable writes."""

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from statelog.environment import DiskHook, no_faults
from statelog.errors import AlreadyExists, ConfigError, StorageFull, StoreUnavailable
from statelog.schemas.ledger.place import has_utf8
from statelog.schemas.names import check_kind

_FULL = frozenset({"ENOSPC", "EDQUOT"})
NO_MORE_FILES = frozenset({"EMFILE", "ENFILE"})
_HINTS = {
    **dict.fromkeys(_FULL, "Free space on this disk, or name a path on another one; then run again"),
    **dict.fromkeys(NO_MORE_FILES, "Raise the limit of open files (ulimit -n), then run again"),
    **dict.fromkeys(("ENOENT", "ENOTDIR"), "Make the directory, or name another path"),
    **dict.fromkeys(("EISDIR", "ENOTEMPTY", "EEXIST"), "Name another path: something else is at this one"),
    **dict.fromkeys(("EACCES", "EPERM", "EROFS"), "Let this user write there, or name another path"),
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
open_private = partial(os.open, mode=0o600)
"""Opens files that only this user may read: an opener for `open`."""
_OTHERWISE = "Check this machine's disk and its mounts, then run again"


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path on the local disk. Raises ConfigError for a URL, or if this or other libraries cannot use it."""
    check_kind("a path on the local disk", path, str, os.PathLike, example="text, or a pathlib.Path")
    text = cast("str | bytes", os.fspath(path))
    if not isinstance(text, str) or "\0" in text or not has_utf8(text):
        hint = "Give text that is valid UTF-8, without null characters"
        raise ConfigError("a path on the local disk is not one that can be written to", hint=hint, path=repr(text))
    if _URL.match(text):
        raise ConfigError(
            "a path on the local disk is needed here, and this is a URL", hint="Write to the disk, and copy the result"
        )
    return Path(path)


@contextmanager
def local_disk(path: Path, step: str = "", disk: DiskHook = no_faults, *, full_hint: str = "") -> Generator[None]:
    """Translate failures of the local disk in this block.

    With a `step`, `disk` is called first. `full_hint` is the hint if the disk is full.
    """
    try:
        if step:
            disk(step, path)
        yield
    except OSError as error:
        raise local_disk_error(error, path, full_hint=full_hint) from error


def local_disk_error(error: OSError, path: Path, *, full_hint: str = "") -> StorageFull | StoreUnavailable:
    """Return StorageFull or StoreUnavailable with the path, the errno's name as `code`, and a hint for it."""
    code = errno.errorcode.get(error.errno or 0)
    kind = StorageFull if code in _FULL else StoreUnavailable
    hint = full_hint if full_hint and code in _FULL else _HINTS.get(code or "", _OTHERWISE)
    return kind(f"the local disk failed: {error}", hint=hint, path=str(path), code=code)


def is_there(path: Path) -> bool:
    """Return whether something is at the path. Raise OSError if that cannot be known.

    `Path.exists` does not raise from Python 3.14 on: it takes a directory that it may not read for an empty one.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    return True


def require_file(path: Path) -> None:
    """Raise AlreadyExists for anything but a file, such as a directory, a pipe or /dev/null: only files are replaced.

    Raises StoreUnavailable if the path cannot be examined.
    """
    with local_disk(path):
        if is_there(path) and not path.is_file():
            what = "a directory is there already" if path.is_dir() else "the path is not a file"
            raise AlreadyExists(what, path=str(path), hint="Name a file, also in this directory")


def sync(path: Path) -> None:
    """Sync a file, or the entries of a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_parents(path: Path) -> None:
    """Make the missing parents of a path durably. Raises OSError."""
    missing = [parent for parent in path.parents if not is_there(parent)]
    path.parent.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)
