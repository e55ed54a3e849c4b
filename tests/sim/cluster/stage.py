"""Shared parts on a cluster: the sources of all values, digests of states, journals, and the stage.

A value names the incarnation that wrote it, so a commit that is doubled, torn or fenced shows in the state. Every
commit also puts a mark of its own, a key that no other commit writes.

Invariants: the contents of a commit follow from its `Attempt` alone; names share no key and no partition.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from statelog.errors import StatelogError, Unavailable
from statelog.log import Log, Where
from statelog.schemas.key_groups import KeyType, key_group_of, partition_of

__all__ = [
    "JOB",
    "KEY_GROUPS",
    "PARTITIONS",
    "PARTITIONS_OF",
    "PAUSE_S",
    "Attempt",
    "Board",
    "Journal",
    "Part",
    "Stage",
    "State",
    "changes_of",
    "entries",
    "mark_of",
    "owner_of",
    "partition_of_key",
]

PARTITIONS = 8
KEY_GROUPS = 16
JOB = "job"
"""The name that a coordinator and its tasks write under; each of its partitions has a task of its own."""
PARTITIONS_OF: Mapping[str, tuple[int, ...]] = {"w0": (0, 1), "w1": (2, 3), "w2": (4, 5), JOB: (6, 7)}
_KEYS = 97


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempted commit: the source's events from `begin` to `end`, by one incarnation of a writer."""

    writer: str
    life: str
    checkpoint: int
    begin: int
    end: int


def partition_of_key(key: bytes) -> int:
    """Return the partition of a key in these logs."""
    return partition_of(key_group_of(key, KeyType.BYTES, KEY_GROUPS), PARTITIONS, KEY_GROUPS)


def owner_of(key: bytes) -> str:
    """Return the name that owns the key."""
    return key.partition(b"/")[0].decode()


def mark_of(writer: str, checkpoint: int) -> bytes:
    """Return the key that this commit alone puts."""
    return _placed(writer, f"{writer}/c{checkpoint}")


def changes_of(attempt: Attempt) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield its changes in order; None deletes."""
    keys = _keys(attempt.writer)
    for event in range(attempt.begin, attempt.end):
        key = keys[event * 31 % _KEYS]
        yield key, None if event % 11 == 10 else f"{attempt.life}:{attempt.checkpoint}:{event}".encode()
    yield mark_of(attempt.writer, attempt.checkpoint), f"{attempt.life}:{attempt.begin}-{attempt.end}".encode()


class State:
    """Keyed state, and a digest of it that does not depend on any order; one for each name, too."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.digests = dict.fromkeys(PARTITIONS_OF, 0)
        for key, value in rows:
            self.change(key, value)

    def change(self, key: bytes, value: bytes | None) -> None:
        """Put, or delete for None."""
        old = self.rows.pop(key, None)
        if old is not None:
            self._count(key, -_hash(key, old))
        if value is not None:
            self.rows[key] = value
            self._count(key, _hash(key, value))

    @property
    def digest(self) -> int:
        """The digest of all names."""
        return sum(self.digests.values()) % 2**64

    def _count(self, key: bytes, amount: int) -> None:
        owner = owner_of(key)
        self.digests[owner] = (self.digests[owner] + amount) % 2**64


class Journal:
    """One actor's journal, a line for each note, on disk before anything else happens: it survives a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, **facts: object) -> None:
        """Write a line. `at` is in seconds of the clock that all processes of this machine share."""
        line = json.dumps({"what": what, "at": time.monotonic(), **facts})
        os.write(self._file, line.encode() + b"\n")


def entries(directory: Path, pattern: str = "*") -> list[dict[str, Any]]:
    """Return all notes in the journals of these names, in the order of time; `actor` names the author."""
    found = [
        {"actor": path.stem, **json.loads(line)}
        for path in directory.glob(f"{pattern}.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sorted(found, key=lambda entry: float(entry["at"]))


class Board:
    """The acknowledged ledger position of every name, which all processes see at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def tell(self, writer: str, position: int) -> None:
        """Record that everything below this ledger position is acknowledged to `writer`."""
        place = 8 * list(PARTITIONS_OF).index(writer)
        if position > int.from_bytes(os.pread(self._file, 8, place), "little"):  # A paused process may be late.
            os.pwrite(self._file, position.to_bytes(8, "little"), place)

    def acknowledged(self) -> int:
        """Return the highest position that was acknowledged to any name."""
        data = os.pread(self._file, 8 * len(PARTITIONS_OF), 0)
        return max((int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)), default=0)


@cache
def _keys(writer: str) -> tuple[bytes, ...]:
    return tuple(_placed(writer, f"{writer}/k{i}") for i in range(_KEYS))


def _placed(writer: str, stem: str) -> bytes:
    """Return the first key of this stem that lies in a partition of its writer."""
    candidates = (f"{stem}/{i}".encode() for i in count())
    return next(key for key in candidates if partition_of_key(key) in PARTITIONS_OF[writer])


def _hash(key: bytes, value: bytes) -> int:
    return xxh3_64_intdigest(b"%d:%b%b" % (len(key), key, value))


PAUSE_S = 0.3
_IMPATIENT = {"socket.timeout.ms": "3000", "message.timeout.ms": "6000"}
"""Settings of half of the incarnations, which leave outcomes unknown and to be resolved; the others have defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The places of a play: the log, its cluster, its root, and the directory of journals and letters."""

    log: str
    bootstrap: str
    root: str
    directory: Path

    def kafka(self, life: int) -> dict[str, str]:
        """Return the client's settings for one incarnation."""
        return {"bootstrap.servers": self.bootstrap, **(_IMPATIENT if life % 2 else {})}

    @property
    def is_over(self) -> bool:
        """Whether the actors are to end."""
        return self.curtain.exists()

    @property
    def curtain(self) -> Path:
        """The file whose existence ends the play."""
        return self.directory / "curtain"

    @property
    def mail(self) -> Path:
        """The directory where a coordinator and its tasks leave letters and answers."""
        return self.directory / "mail"

    @property
    def board(self) -> Board:
        """The acknowledged positions of all names."""
        return Board(self.directory / "board")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An actor's part: its name, the number of its incarnation, and its journal."""

    stage: Stage
    name: str
    life: int
    journal: Journal

    def open(self) -> Log:
        """Return the log, once Kafka answers."""
        while True:
            try:
                return Log.open(self.stage.log, Where(self.stage.kafka(self.life), self.stage.root))
            except Unavailable as error:
                if self.stage.is_over:
                    raise
                self.failed(error)

    def failed(self, error: StatelogError) -> None:
        """Record an error after which an actor tries again, and wait a little."""
        self.journal.note("error", kind=type(error).__name__, text=str(error))
        time.sleep(PAUSE_S)
