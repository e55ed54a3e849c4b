"""`CommittedChunk`: committed changes of a partition. `CarriedChanges`: the changes in ledger records, for a portion
of a plan, by partition in commit order.

It reads the ledger topic once, and holds all changes until they are handed out; a portion bounds them.

Invariants:
- A record counts if its hash is the folded one. A different or missing record is a loss.
- Only changes of the plan's partitions come out, each partition's in the order of the commits.
- Before a commit's own chunks, all changes that earlier commits carry for its partition are handed out.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.errors import CorruptChunk
from statelog.history import mismatch
from statelog.kafka.port import OffsetRange, Reader
from statelog.log import Log
from statelog.schemas.arrays import numbers_of, taken
from statelog.schemas.changes.chunk import VerifiedChunks, decode_batches, head_of
from statelog.schemas.changes.replay_plan import ReplayPlan, joined
from statelog.schemas.key_groups import partition_starts
from statelog.schemas.ledger.inline import Carried
from statelog.schemas.ledger.place import LastRecord


class CommittedChunk(NamedTuple):
    """The changes of a committed chunk, or of several small ones in a row, as they were written.

    `commit` and `offset`: the plan's commit number and the record in `topic`, of the first chunk.
    `value_schema_id`: the schema of the values.
    `changes`: with the column of dues if any of these chunks has it.
    `size_bytes`: the most memory that the changes hold: that of the records, because they may point into one.
    """

    topic: str
    partition: int
    offset: int
    commit: int
    value_schema_id: int
    size_bytes: int
    changes: pa.RecordBatch


def ledger_values(
    log: Log, reader: Reader, records: Iterable[LastRecord], *, stall_timeout_s: float
) -> dict[int, bytes]:
    """Read folded records of the ledger again. Return their values by offset.

    Raises AnchorMismatch if one is missing or another one, OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    topic, found = log.ledger_topic, dict[int, bytes]()
    wanted = {one.offset: one for one in records}
    for start, end in joined([(offset, offset + 1) for offset in wanted]):
        for record in reader.read({0: OffsetRange(start, end)}, stall_timeout_s=stall_timeout_s):
            last = wanted.get(record.offset)
            if last is None:
                continue
            if LastRecord.of(record.offset, record.value) != last:
                raise mismatch(topic, last, position=last.offset + 1)
            found[record.offset] = record.value
    for offset, last in wanted.items():
        if offset not in found:
            raise mismatch(topic, last, position=offset + 1)
    return found


class CarriedChanges:
    """The changes that a portion's ledger records carry, by partition: `together`, or each commit's alone."""

    def __init__(
        self, log: Log, plan: ReplayPlan, change_schema: Callable[[int], pa.Schema], *, together: bool = True
    ) -> None:
        self._log = log
        self._plan = plan
        self._change_schema = change_schema
        self._together = together
        self._pieces: dict[int, deque[CommittedChunk]] = {}

    def read(self, reader: Reader, *, stall_timeout_s: float) -> None:
        """Read all of it. Raises AnchorMismatch, CorruptChunk, OffsetGone, BeyondEnd, BrokerUnavailable."""
        records = (one.record for one in self._plan.carried.values())
        values = ledger_values(self._log, reader, records, stall_timeout_s=stall_timeout_s)
        carried = self._plan.carried.items()
        for schema_id, group in groupby(carried, key=lambda one: one[1].inline.value_schema_id):
            self._take(schema_id, dict(group), values)

    def before(self, partition: int, commit: int) -> Iterator[CommittedChunk]:
        """Yield the changes that commits before this one carry for a partition."""
        pieces = self._pieces.get(partition)
        while pieces and pieces[0].commit < commit:
            yield pieces.popleft()

    def rest(self) -> Iterator[CommittedChunk]:
        """Yield the remaining changes."""
        for partition in sorted(self._pieces):
            yield from self._pieces.pop(partition)

    # ---- read

    def _take(self, schema_id: int, carried: Mapping[int, Carried], values: Mapping[int, bytes]) -> None:
        chunks, topic = VerifiedChunks(), self._log.ledger_topic
        for one in carried.values():
            inline = one.inline
            groups = inline.first_key_group, inline.last_key_group
            head = head_of(*groups, inline.changes, schema_id, has_due=inline.has_due)
            chunks.add(values[one.record.offset], head, one.start)
        try:
            batch = decode_batches(chunks, self._change_schema(schema_id))
        except CorruptChunk as error:
            first = next(iter(carried.values())).record
            raise error.restated(topic=topic, partition=0, offset=first.offset) from error
        numbers = np.repeat(np.fromiter(carried, np.int64), [one.inline.changes for one in carried.values()])
        self._split(schema_id, batch, numbers, carried)

    def _split(
        self, schema_id: int, batch: pa.RecordBatch, numbers: NDArray[np.int64], carried: Mapping[int, Carried]
    ) -> None:
        """Cut the changes by partition, and a partition's changes where chunks of the data topic come in between."""
        descriptor, topic = self._log.descriptor, self._log.ledger_topic
        starts = partition_starts(descriptor.partitions, descriptor.key_groups)
        partitions = np.searchsorted(starts, numbers_of(batch.column(0)), side="right") - 1
        self._check_partitions(partitions, numbers, carried)
        order = np.argsort(partitions.astype(np.uint16), kind="stable")
        batch, numbers = taken(batch, order), numbers[order]
        cuts = np.searchsorted(partitions[order], np.arange(descriptor.partitions + 1)).tolist()
        for partition in sorted(self._plan.partitions):
            start, end = cuts[partition], cuts[partition + 1]
            if start == end:
                continue
            mine = numbers[start:end]
            pieces = self._pieces.setdefault(partition, deque())
            for at, to in self._cuts(partition, mine):
                first, changes = int(mine[at]), batch.slice(start + at, to - at)
                offset = carried[first].record.offset
                pieces.append(CommittedChunk(topic, partition, offset, first, schema_id, changes.nbytes, changes))

    def _check_partitions(
        self, partitions: NDArray[np.int64], numbers: NDArray[np.int64], carried: Mapping[int, Carried]
    ) -> None:
        """Raise CorruptChunk if a commit carries changes of other partitions than its head names, by which the fold has
        judged it.
        """
        width = self._log.descriptor.partitions
        found: dict[int, int] = {}
        for pair in np.unique(numbers * width + partitions).tolist():
            found[pair // width] = found.get(pair // width, 0) | 1 << pair % width
        for number, one in carried.items():
            if found.get(number, 0) != one.inline.partitions:
                raise CorruptChunk(
                    "a commit carries changes of other partitions than it names",
                    topic=self._log.ledger_topic,
                    offset=one.record.offset,
                )

    def _cuts(self, partition: int, numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return where pieces begin and end: at each commit, or only where the data topic has one in between."""
        if not self._together:
            points = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        else:
            between = sorted({listed.commit for listed in self._plan.listed.get(partition, {}).values()})
            points = sorted(set(np.searchsorted(numbers, between, side="left").tolist()) - {0, len(numbers)})
        return list(zip([0, *points], [*points, len(numbers)], strict=True))
