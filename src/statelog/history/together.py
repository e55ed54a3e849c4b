"""Commits that go out as one ledger record: one request, and one record to read back.

`together` gathers the commits that one thread appends in a block, such as those of a worker's partitions. `GroupCommit`
gathers those of several threads: while one of them waits for an answer, the commits of the others wait, and the next
thread sends all of them.

Invariants:
- Each commit is judged by itself. A void commit, or a fenced writer, does not affect the others.
- A record is never sent twice. If its outcome is unknown, or its sender is interrupted, each writer resolves its own
  commit by an Open, which ends the epoch of a commit that arrives late.
- In a block, the commits are sent at its end, or when a caller waits for one: no caller waits for an unsent one. A
  thread gathers only while the block runs. An interrupt at any line ends that, too.
- No thread waits for a dead sender: only the sender's own call holds the group, the others hold weak references.
"""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock, local
from typing import Protocol
from weakref import ref

from statelog.errors import OutcomeUnknown, StatelogError, Unavailable
from statelog.history.following import Landed
from statelog.kafka.port import Producer
from statelog.pending import Pending
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import Commit, Commits, LedgerRecord, encode

_MOST_BYTES = 512 << 10
"""The size of a record that fits in any log, framing included."""
_LOCAL = local()
_SLICE_S = 0.2
"""How long a thread waits before it checks whether the sender is still there."""


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
        return self.sent is None and self.error is None and self.size_bytes + commit.size_bytes <= _MOST_BYTES

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


# ---- of several threads


@dataclass(slots=True, eq=False)
class _GroupedCommit:
    """A commit whose thread waits, and its outcome: the record that it was sent in, or an error."""

    commit: Commit
    bell: Event = field(default_factory=Event)
    group: "ref[_CommitGroup] | None" = None
    sent: LastRecord | None = None
    number: int = 0
    error: StatelogError | None = None

    @property
    def is_over(self) -> bool:
        return self.sent is not None or self.error is not None


class _CommitGroup(list[_GroupedCommit]):
    """The commits of one record. Empty for a thread that sent its own commit."""


@dataclass(slots=True, eq=False)
class GroupCommit:
    """The commits of one history. Thread-safe."""

    _lock: Lock = field(default_factory=Lock)
    _waiting: deque[_GroupedCommit] = field(default_factory=deque[_GroupedCommit])
    _sender: "ref[_CommitGroup] | None" = None

    def append(self, history: Sends, producer: Producer, commit: Commit) -> Pending[Landed]:
        """Append a commit, alone or with others, and promise its verdict, which the caller waits for at once.

        Raises as `History.append`.
        """
        if self._is_sending:
            return Pending("Commit", 0, lambda _: True, lambda: self._with_others(history, producer, commit))
        value = encode(commit)
        sent = history.send(producer, commit, value)

        def take() -> Landed:
            group = _CommitGroup()
            self._sender = ref(group)
            try:
                offset = sent.result()
            finally:
                self._hand_over(group)
            return history.landed(LastRecord.of(offset, value))

        return Pending("Commit", 0, sent.wait, take)

    @property
    def _is_sending(self) -> bool:
        return self._sender is not None and self._sender() is not None

    def _with_others(self, history: Sends, producer: Producer, commit: Commit) -> Landed:
        mine = _GroupedCommit(commit)
        self._waiting.append(mine)
        try:
            group = self._group_of(mine)
        finally:  # No thread sends the commit of one that was interrupted while it waited.
            with self._lock, suppress(ValueError):
                self._waiting.remove(mine)
        if group is not None:
            self._send(history, producer, group)
        if mine.error is not None:
            raise mine.error.restated() from mine.error
        assert mine.sent is not None, "a commit without an error was sent"
        return history.landed(mine.sent, mine.number)

    def _group_of(self, mine: _GroupedCommit) -> _CommitGroup | None:
        """Wait for the turn to send, and return the commits to send; None once another thread has sent this one."""
        while True:
            with self._lock:
                if mine.is_over:
                    return None
                if mine.group is not None and mine.group() is None:
                    mine.error = _interrupted()
                    return None
                if mine.group is None and not self._is_sending:
                    group = self._taken(mine)
                    self._sender = ref(group)
                    return group
            mine.bell.wait(_SLICE_S)
            mine.bell.clear()

    def _taken(self, mine: _GroupedCommit) -> _CommitGroup:
        self._waiting.remove(mine)
        group, size_bytes = _CommitGroup([mine]), mine.commit.size_bytes
        while self._waiting and size_bytes + self._waiting[0].commit.size_bytes <= _MOST_BYTES:
            size_bytes += self._waiting[0].commit.size_bytes
            group.append(self._waiting.popleft())
        for one in group:
            one.group = ref(group)
        return group

    def _send(self, history: Sends, producer: Producer, group: _CommitGroup) -> None:
        try:
            record = group[0].commit if len(group) == 1 else Commits(tuple(one.commit for one in group))
            value = encode(record)
            sent = LastRecord.of(history.send(producer, record, value).result(), value)
            with self._lock:
                for number, one in enumerate(group):
                    one.sent, one.number = sent, number
        except StatelogError as error:
            for one in group:
                one.error = error
        finally:
            self._hand_over(group)

    def _hand_over(self, group: _CommitGroup) -> None:
        """Wake the threads whose commits were sent, and the next sender."""
        with self._lock:
            self._sender = None
            for one in group:
                if not one.is_over:
                    one.error = _interrupted()
            for one in [*group, *list(self._waiting)[:1]]:
                one.bell.set()


def _interrupted() -> OutcomeUnknown:
    return OutcomeUnknown("the thread that sent the commit was interrupted")
