"""`together`: send the commits that a thread appends in a block as one record of each ledger, for example those of a
worker's partitions: one request, and one record to read back.

Invariants:
- The commits are sent at the end of the block, or when a caller waits for one: no caller waits for an unsent one.
- A thread gathers only while the block runs. An interrupt at any line ends that, too.
- Each commit is judged by itself. A void commit, or a fenced writer, does not affect the others.
- A record is never sent twice. If its outcome is unknown, each writer resolves its own commit by an Open, which ends
  the epoch of a commit that arrives late.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Protocol
from weakref import ref

from statelog.errors import Unavailable
from statelog.history.following import Landed
from statelog.kafka.port import Producer
from statelog.pending import Pending
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import Commit, Commits, LedgerRecord, encode

MOST_BYTES = 512 << 10
"""The size of a record that fits in any log, framing included."""
_LOCAL = local()


class Sends(Protocol):
    """The part of a history that gathered commits need."""

    def send(self, producer: Producer, record: LedgerRecord, value: bytes) -> Pending[int]:
        """Append an encoded record, and wait for nothing. The result is its offset."""
        ...

    def landed(self, ours: LastRecord, number: int = 0) -> Landed:
        """Read the verdict on a record, or on one of the commits in it."""
        ...


@dataclass(slots=True, eq=False)
class _OneRecord:
    """A record on its way."""

    value: bytes
    offset: Pending[int]


@dataclass(slots=True)
class Gathered:
    """The commits that wait to be sent to one ledger, and the record that carried them."""

    history: Sends
    producer: Producer
    commits: list[Commit] = field(default_factory=list[Commit])
    size_bytes: int = 0
    sent: _OneRecord | None = None
    error: Unavailable | None = None

    def add(self, commit: Commit) -> Pending[Landed]:
        """Add a commit. Return its pending verdict."""
        number = len(self.commits)
        self.commits.append(commit)
        self.size_bytes += commit.size_bytes

        def take() -> Landed:
            sent = self.send()
            return self.history.landed(LastRecord.of(sent.offset.result(), sent.value), number)

        return Pending("Commit", 0, self._is_answered, take)

    def _is_answered(self, timeout_s: float) -> bool:
        """Wait so long for the answer, and return whether it is there. A call without a timeout sends nothing."""
        return (self.sent is not None or timeout_s > 0) and self.send().offset.wait(timeout_s)

    def has_room(self, commit: Commit) -> bool:
        """Return whether one more fits."""
        return self.sent is None and self.error is None and self.size_bytes + commit.size_bytes <= MOST_BYTES

    def send(self) -> _OneRecord:
        """Send the gathered commits, once. Raises Unavailable if they could not even be queued."""
        if self.error is not None:
            raise self.error.restated() from self.error
        if self.sent is None:
            one = self.commits[0] if len(self.commits) == 1 else Commits(tuple(self.commits))
            value = encode(one)
            try:
                self.sent = _OneRecord(value, self.history.send(self.producer, one, value))
            except Unavailable as error:
                self.error = error
                raise
        return self.sent


class _Block(dict[int, Gathered]):
    """A thread's gathered commits, by ledger. Only the block itself holds it; the thread has a weak reference."""


def _gathering() -> _Block | None:
    block: ref[_Block] | None = getattr(_LOCAL, "block", None)
    return None if block is None else block()


@contextmanager
def together() -> Generator[None]:
    """Gather the commits that this thread appends in the block, to any number of logs."""
    if _gathering() is not None:
        yield
        return
    mine = _Block()
    try:
        _LOCAL.block = ref(mine)
        yield
    finally:
        _LOCAL.block = None
        for one in mine.values():
            try:
                one.send()
            except Unavailable:
                continue  # Its verdicts raise it.


def add_gathered(history: Sends, producer: Producer, commit: Commit) -> Pending[Landed] | None:
    """Add a commit to those that this thread gathers; None outside a `together` block. Raises Unavailable."""
    mine = _gathering()
    if mine is None:
        return None
    found = mine.get(id(history))
    if found is None or not found.has_room(commit):
        if found is not None:
            found.send()
        found = mine[id(history)] = Gathered(history, producer)
    return found.add(commit)
