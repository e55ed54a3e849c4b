"""Watches the log from outside while the job runs: valid commits, void records, chunks in flight.

Folds the ledger with the same pure fold as every reader. Invariant: it reads every record, because it starts before the
first one and reads faster than the materializer truncates.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.schemas.changes.chunk import decode_head
from statelog.schemas.ledger.fold import LedgerFold
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.records import Commit, Open, decode

__all__ = ["Chunks", "LedgerWatch", "SeenCommit"]

_STALL_TIMEOUT_S = 30.0


class SeenCommit(NamedTuple):
    """A valid commit. `at_s`: the time of its observation, on the monotonic clock."""

    offset: int
    epoch: int
    at_s: float
    entries: tuple[Entry, ...]

    @property
    def changes(self) -> int:
        """The number of its changes."""
        return sum(entry.changes for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        """The size of its chunks."""
        return sum(entry.size_bytes for entry in self.entries)


class Chunks(NamedTuple):
    """The chunks of one epoch in a part of the data topic."""

    chunks: int
    changes: int
    size_bytes: int


class LedgerWatch:
    """Follows one log. `refresh` reads on; the attributes have the observations so far."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ledger = log.kafka.reader(log.ledger_topic)
        self._data = log.kafka.reader(log.data_topic)
        self._fold = LedgerFold(log.descriptor.identity)
        self.commits: list[SeenCommit] = []
        self.epochs: list[int] = []
        self.voids: list[tuple[int, str]] = []

    def refresh(self) -> None:
        """Fold the new records of the ledger."""
        end = self._log.kafka.offsets(self._log.ledger_topic, [0])[0].end
        if end <= self._fold.position:
            return
        wanted = {0: OffsetRange(self._fold.position, end)}
        for found in self._ledger.read(wanted, stall_timeout_s=_STALL_TIMEOUT_S):
            record = decode(found.value)
            void = self._fold.apply(found.offset, record)
            if void is not None:
                epoch = record.epoch if isinstance(record, Commit) else found.offset
                self.voids.append((epoch, str(void.reason)))
            elif isinstance(record, Open):
                self.epochs.append(found.offset)
            elif isinstance(record, Commit):
                entries = tuple(entry for handle in record.read_body().handles for entry in handle.entries)
                self.commits.append(SeenCommit(found.offset, record.epoch, time.monotonic(), entries))
        self._fold.advance(end)

    def in_flight(self) -> dict[int, OffsetRange]:
        """Return the offsets in the data topic behind the last commit, by partition, if there are any."""
        ends = self._log.data_offsets()
        behind = {p: OffsetRange(self._fold.committed_position(p), offsets.end) for p, offsets in ends.items()}
        return {p: offsets for p, offsets in behind.items() if offsets.end > offsets.start}

    def chunks_of(self, epoch: int, ranges: Mapping[int, OffsetRange]) -> Chunks:
        """Return the chunks of a writer of this epoch in these ranges of the data topic."""
        chunks = changes = size_bytes = 0
        for record in self._data.read(ranges, stall_timeout_s=_STALL_TIMEOUT_S):
            decoded = decode_head(record.value)
            if decoded is not None and decoded[0].epoch == epoch:
                chunks, changes, size_bytes = chunks + 1, changes + decoded[0].changes, size_bytes + len(record.value)
        return Chunks(chunks, changes, size_bytes)

    def truncated_bytes(self) -> int:
        """Return the bytes of committed chunks that now lie wholly below the log start of their partition."""
        starts = {p: offsets.start for p, offsets in self._log.data_offsets().items()}
        entries = (entry for commit in self.commits for entry in commit.entries)
        return sum(entry.size_bytes for entry in entries if entry.end_offset <= starts[entry.partition])

    def close(self) -> None:
        """Release the readers."""
        self._ledger.close()
        self._data.close()
