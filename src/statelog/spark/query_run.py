"""`QueryRun`: a query, or a writer of plain writes, in one Spark session; the mark on its epochs, and its file.

The planning workers of a session are children of one parent, so they know each other without talking: the first eight
bytes of a nonce say that Spark opened the epoch, for a query or for plain writes, for which one, and in which session.
A worker may end and another one go on. So the session keeps a file that says that a query lost its epoch, and may open
again only after a restart, which Spark does not tell from the next batch. That it had one is in the ledger, too: its
Opens and commits bear its nonces.

Invariants:
- Deleting a run's file takes no epoch back as long as the ledger holds an Open of the run, or its commit is the last.
- What a run left behind on this machine is removed once its session is gone, or after a month untouched.
"""

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from statelog.errors import ConfigError
from statelog.schemas.ledger.place import LogIdentity
from statelog.spark.options import WriteOptions

OF_QUERY, OF_PLAIN, _VOIDED = b"SQ", b"SP", b"S-"
"""What the nonces of a streaming query of Spark's begin with, those of plain writes, and those of nobody."""
_KIND_BYTES, _PART_BYTES, _TAG_BYTES = 2, 3, 8
_FORGOTTEN_S = 30 * 86_400.0


def run_tag(options: WriteOptions, log: LogIdentity) -> bytes:
    """What all nonces of this run begin with; the same in all planning workers of a session.

    Started again with other partitions, a query is another run, which opens again; and so it is on another log: one of
    the same name elsewhere, or what was made anew.
    """
    where = (options.where.log, options.writer, options.checkpoint_location or options.query_id)
    session = (platform.node(), *_session(), options.partitions, options.share, log)
    kind = OF_QUERY if options.serves_query else OF_PLAIN
    return kind + _hashed(where) + _hashed((where, session))


def voided_nonce() -> bytes:
    """The nonce of an epoch that only ends another one, and bars nobody."""
    return _VOIDED + os.urandom(16 - _KIND_BYTES)


def sibling_nonce(nonce: bytes) -> bytes:
    """A new nonce of the same run as `nonce`, or as the tag that it begins with."""
    return nonce[:_TAG_BYTES] + os.urandom(16 - _TAG_BYTES)


def same_run(one: bytes, other: bytes) -> bool:
    """Whether two nonces are of one run."""
    return one[:_TAG_BYTES] == other[:_TAG_BYTES]


def query_of(nonce: bytes) -> bytes:
    """What the nonces of one query, or one plain writer, have in common in all sessions."""
    return nonce[: _KIND_BYTES + _PART_BYTES]


class QueryRun(NamedTuple):
    """A run on this machine. `mark` is the file that says whether it was told that it lost its epoch."""

    tag: bytes
    mark: Path

    def has_opened(self, in_ledger: Callable[[], bool]) -> bool:
        """Whether a worker of this run opened an epoch, and nobody was told since that it is fenced. `in_ledger` tells
        whether the ledger has an Open or a commit of the run, for one whose file is gone.
        """
        try:
            return self.mark.stat().st_size == 0
        except FileNotFoundError:
            return in_ledger()

    def note(self, what: str = "") -> None:
        """Note that an epoch was opened; or, as "told", that the run was told that it lost it: started again it may
        open. Removes what runs of sessions left that are gone. Raises ConfigError.
        """
        try:
            self.mark.write_text(what, "ascii")
            for path in self.mark.parent.iterdir():
                space, _, rest = path.name.partition("-")
                pid, _, rest = rest.partition("-")
                is_gone = space == _space() and pid.isdecimal() and _start_time(int(pid)) != rest.partition("-")[0]
                with suppress(FileNotFoundError):  # Another process may remove it, too.
                    if is_gone or time.time() - path.stat().st_mtime > _FORGOTTEN_S:
                        path.unlink()
        except OSError as error:
            raise _unusable(self.mark.parent, str(error)) from error

    def keep(self) -> None:
        """Note that the run goes on, so that no cleaner takes its file for an old one."""
        with suppress(OSError):
            self.mark.touch(mode=0o600)


def note_given_up(nonce: bytes) -> None:
    """Note that the run of this nonce ended its epoch itself: started again it may open. Nothing if it has no mark."""
    with suppress(OSError):
        for mark in _directory().glob(f"*-{nonce[:_TAG_BYTES].hex()}"):
            mark.write_text("told", "ascii")


def run_of(options: WriteOptions, log: LogIdentity) -> QueryRun:
    """The run that this process plans for, on the log with this identity. Raises ConfigError if the directory for marks
    is not the user's own.
    """
    tag, (parent, started) = run_tag(options, log), _session()
    directory = _directory()
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            raise _unusable(directory, "it belongs to another user")
    except OSError as error:
        raise _unusable(directory, str(error)) from error
    return QueryRun(tag, directory / f"{_space()}-{parent}-{started}-{tag.hex()}")


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"statelog-spark-{os.getuid()}"


def _unusable(directory: Path, problem: str) -> ConfigError:
    return ConfigError(
        "the directory for notes on running queries cannot be used",
        directory=str(directory),
        problem=problem,
        hint="Remove it, or set TMPDIR for Spark's driver",
    )


def _hashed(facts: object) -> bytes:
    return hashlib.sha256(repr(facts).encode()).digest()[:_PART_BYTES]


def _session() -> tuple[int, str]:
    parent = os.getppid()
    return parent, _start_time(parent)


def _space() -> str:
    """Where process ids mean what they mean here: containers may share a temporary directory."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; '' where there is none or the kernel does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
