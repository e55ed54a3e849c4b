"""Messages that left with commits: read again from where they lie, in the order of the commits, for who publishes them.

A commit lists them, as output chunks of the data topic, or carries them in its own ledger record; the listed ones come
first. `OutputReader` finds the commits in the history of this process, or in the ledger behind a base.

Invariants:
- Every message of every valid commit of the writer comes out once, or an error does. Only what lies at offsets that a
  person accepted as lost is left out.
- Listed messages come by partition, and within one in the order in which they were sent. A writer has all in one.
- What comes out as the last of a commit was compared with what the commit names, all of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from statelog.closing import Closing
from statelog.errors import ConfigError, Corrupt, CorruptLedger, LogInUse
from statelog.kafka.port import STALL_TIMEOUT_S, Reader
from statelog.log import Log
from statelog.reading.carried import ledger_values
from statelog.reading.claims import list_subscriptions
from statelog.reading.replay import listed_outputs
from statelog.reading.retained_history import RetainedHistory
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.ledger.fold import LedgerBase, ValidCommit
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.outputs.batch import read_outputs
from statelog.schemas.outputs.output import Output
from statelog.schemas.outputs.stored import StoredPlace, outputs_group
from statelog.schemas.snapshot.claims import OUTPUTS, Subscription, newest_files

_PORTION_BYTES = 16 << 20
"""The most messages of ledger records that are held at once."""
_PORTION_COMMITS = 1024


class CommittedOutputs(NamedTuple):
    """Messages of one commit in a row; a large commit has several such parts.

    `position`: the ledger position right behind the commit.
    `number`: that of the first message, among all of the commit.
    `is_last`: whether this part ends the commit.
    """

    position: int
    number: int
    outputs: Sequence[Output]
    is_last: bool


def outputs_between(
    log: Log, writer: str, after: int, to: int, base: LedgerBase | None = None
) -> Iterator[CommittedOutputs]:
    """Yield the messages of a writer's commits above one position and up to another, as `OutputReader.between`."""
    with OutputReader(log, writer) as reader:
        yield from reader.between(after, to, base)


def count_outputs(log: Log, writer: str, after: int, to: int, base: LedgerBase | None = None) -> int:
    """Return how many messages the commits of a writer have, between two positions as `OutputReader.between` has them.

    Reads none of them. Raises as `OutputReader.between`.
    """
    commits = (one for one in _commits(log, after, to, base) if one.writer == writer and one.commit.outputs)
    return sum(_SendingCommit.of(one).messages for one in commits)


def check_published(log: Log) -> None:
    """Raise LogInUse if a committed message of the log may not be published. Raises Damaged, Unavailable."""
    newest = newest_files(list_subscriptions(log.store).files)
    for one in (file.subscription for file in newest.values()):
        position = None if one.ended else first_unpublished(log, one, log.history.read().place.position)
        if position is not None:
            raise LogInUse(
                "a writer has sent messages that may not be published yet",
                log=log.name,
                writer=one.reader.removeprefix(OUTPUTS),
                position=position,
                hint="Open its table once more, and close it: that publishes them. To give them up, run `statelog"
                f" subscriptions {log.name} --remove {one.reader}`",
            )


def first_unpublished(log: Log, held: Subscription, to: int) -> int | None:
    """Return the position of the first commit, up to a position, with messages that may not be published; else None.

    `held`: a subscription; any but that of a writer's messages holds none. Raises Damaged, Unavailable.
    """
    writer = held.reader.removeprefix(OUTPUTS)
    if writer == held.reader or held.identity != log.descriptor.identity:
        return None
    after = max(held.position, _stored_position(log, writer))
    commits = _commits(log, after, to, held) if after < to else ()
    return next((one.position for one in commits if one.writer == writer and one.commit.outputs is not None), None)


def _stored_position(log: Log, writer: str) -> int:
    """Return how far a writer's messages are published by its group; 0 if that is unknown."""
    try:
        found = log.kafka.published(outputs_group(log.name, writer), log.ledger_topic, 0)
        stored = StoredPlace.of(found.offset, found.text, log.descriptor.identity.ledger_topic_id)
    except (ConfigError, Corrupt):  # For example a missing right.
        return 0
    return 0 if stored is None else stored.place.position


class OutputReader(Closing):
    """Reads the messages of one writer's commits. Keeps its clients from one read to the next. One thread."""

    def __init__(self, log: Log, writer: str) -> None:
        self._log = log
        self._writer = writer
        self._readers: dict[str, Reader] = {}

    def between(self, after: int, to: int, base: LedgerBase | None = None) -> Iterator[CommittedOutputs]:
        """Yield the messages of commits above one ledger position and up to another, in ledger order.

        `base`: a fold at or below the first position, such as the subscription that holds the messages. It is needed if
        this process no longer knows the commits behind that position, and no snapshot lies below.
        Raises OffsetGone, BeyondEnd, NotFound if the ledger does not reach back; IncompleteChangeSet and other Damaged;
        Unavailable.
        """
        commits = (one for one in _commits(self._log, after, to, base) if one.writer == self._writer)
        for portion in _portions(one for one in commits if one.commit.outputs is not None):
            yield from self._read(portion)

    def close(self) -> None:
        """Release the clients. Idempotent."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _read(self, portion: "Sequence[_SendingCommit]") -> Iterator[CommittedOutputs]:
        carried = [one.commit for one in portion if one.carried_bytes]
        values = self._values(carried) if carried else {}
        listed = self._listed(portion)
        ahead = next(listed, None)
        for at, (commit, _) in enumerate(portion):
            number, last = 0, list[Output]()
            while ahead is not None and ahead[0] == at:
                if last:
                    yield CommittedOutputs(commit.position, number, last, False)
                    number += len(last)
                _, last = ahead
                ahead = next(listed, None)
            inline = _inline(commit, values, self._log.ledger_topic)
            if last and inline:
                yield CommittedOutputs(commit.position, number, last, False)
                number += len(last)
            if last or inline:
                yield CommittedOutputs(commit.position, number, inline or last, True)

    def _listed(self, portion: "Sequence[_SendingCommit]") -> Iterator[tuple[int, list[Output]]]:
        """Yield the listed messages, with the index of their commit. All lie in one partition, or are of one commit."""
        log = self._log
        contents = (CommitContents(tuple(handle.of_outputs for handle in handles)) for _, handles in portion)
        accepted = log.history.ask(lambda fold: fold.accepted)
        plan = plan_replay(contents, range(log.descriptor.partitions), accepted)
        for partition in sorted(plan.listed):
            yield from listed_outputs(log, self._reader(log.data_topic), plan, partition)

    def _values(self, commits: Iterable[ValidCommit]) -> dict[int, bytes]:
        records = (one.place.last for one in commits if one.place.last is not None)
        reader = self._reader(self._log.ledger_topic)
        return ledger_values(self._log, reader, records, stall_timeout_s=STALL_TIMEOUT_S)

    def _reader(self, topic: str) -> Reader:
        if topic not in self._readers:
            self._readers[topic] = self._log.kafka.reader(topic)
        return self._readers[topic]


def _commits(log: Log, after: int, to: int, base: LedgerBase | None) -> Iterator[ValidCommit]:
    """Yield all valid commits above one position and up to another: there may be more than fit in memory."""
    history = log.history
    if history.place.position < to:
        history.read_to(to)
    found = history.commits(after, to)
    if found is not None:
        yield from found
        return
    if base is None or base.place.position > after:
        base = RetainedHistory(log, None).base_for(after)
    with log.replay(base, after) as replay:
        yield from replay.commits(to)


class _SendingCommit(NamedTuple):
    """A commit with messages, and its handles that list any."""

    commit: ValidCommit
    handles: tuple[Handle, ...]

    @classmethod
    def of(cls, commit: ValidCommit) -> "_SendingCommit":
        outputs = commit.commit.outputs
        handles = commit.commit.read_body().handles if outputs and outputs.is_listed else ()
        return cls(commit, tuple(handle for handle in handles if handle.outputs))

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that its listed messages lie in."""
        return frozenset(entry.partition for handle in self.handles for entry in handle.outputs)

    @property
    def messages(self) -> int:
        """The number of its messages."""
        outputs = self.commit.commit.outputs
        return sum(handle.messages for handle in self.handles) + (outputs.messages if outputs else 0)

    @property
    def carried_bytes(self) -> int:
        """The size of the messages in its own record."""
        outputs = self.commit.commit.outputs
        return outputs.size_bytes if outputs else 0


def _portions(commits: Iterable[ValidCommit]) -> Iterator[list[_SendingCommit]]:
    """Cut commits, in order, where their records hold enough, and where listed messages lie in another partition."""
    portion, held_bytes, partitions = list[_SendingCommit](), 0, frozenset[int]()
    for one in map(_SendingCommit.of, commits):
        size_bytes, mine = one.carried_bytes, one.partitions
        is_apart = bool(partitions and mine) and len(partitions | mine) > 1
        is_full = held_bytes + size_bytes > _PORTION_BYTES or len(portion) == _PORTION_COMMITS
        if portion and (is_apart or is_full):
            yield portion
            portion, held_bytes, partitions = [], 0, frozenset[int]()
        portion.append(one)
        held_bytes += size_bytes
        partitions |= mine
    if portion:
        yield portion


def _inline(commit: ValidCommit, values: "dict[int, bytes]", topic: str) -> list[Output]:
    """Return the messages that a commit carries, out of the values of ledger records by offset."""
    outputs = commit.commit.outputs
    if outputs is None or not outputs.messages:
        return []
    try:
        return read_outputs(values[commit.offset], commit.commit.output_start, outputs.messages)
    except Corrupt as error:
        raise CorruptLedger(error.message, topic=topic, offset=commit.offset) from error
