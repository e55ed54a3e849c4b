"""`GroupCommit`: the commits of several threads, each of which waits for its own, in one record.

A thread that commits while no other waits for an answer sends its own record. Commits that come meanwhile are grouped:
once the answer is there, one of their threads sends all of them in one record, and the others learn its offset.

Invariants:
- A record is never sent twice. Each commit in it is judged by itself.
- If the outcome of the record is unknown, or its sender is interrupted, the outcome of each commit is unknown.
- No thread waits for a dead sender: only the sender's own call holds the group, the others hold weak references.
"""

from collections import deque
from dataclasses import dataclass, field
from threading import Event, Lock
from weakref import ref

from statelog.errors import OutcomeUnknown, StatelogError
from statelog.history.following import Landed
from statelog.history.together import MOST_BYTES, Sends
from statelog.kafka.port import Producer
from statelog.pending import Pending
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import Commit, Commits, encode

_SLICE_S = 0.2
"""How long a thread waits before it checks whether the sender is still there."""


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


class GroupCommit:
    """The commits of one history. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting = deque[_GroupedCommit]()
        self._sender: ref[_CommitGroup] | None = None

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
        group = self._group_of(mine)
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
        while self._waiting and size_bytes + self._waiting[0].commit.size_bytes <= MOST_BYTES:
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
