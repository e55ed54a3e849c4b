"""The folded ledger as a value. A manifest carries it, so that the ledger below can be truncated. Pure.

`Origin` names the log that a copy was made from, and the place. It is stored as the last commit of a reserved writer,
so `describe` and `commits()` show it like any writer's.

Invariants:
- Rows are sorted, so equal states have equal bytes.
- It holds all that the fold needs at `position`: a fold that starts here decides as one that started at 0.
- A copy takes over checkpoints, metadata and meta records, so that writers continue their last checkpoint and their
  source. It drops epochs, offsets and accepted losses, and what is known of published messages: they belong to one
  ledger.
- In a copy no commit of a copied writer and no epoch lies above the Restart right below the position.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from statelog.errors import Corrupt
from statelog.schemas.avro import datum_of
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint
from statelog.schemas.ledger.place import LogIdentity, Metadata, Place
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.names import COPIER, SENDER

NO_EPOCH = -1
_NO_METADATA: Metadata = {}


class LastCommit(NamedTuple):
    """A writer's last valid commit, from which its source resumes. `offset` is the commit's ledger offset."""

    checkpoint: Checkpoint
    offset: int
    metadata: Metadata


class WriterState(NamedTuple):
    """One writer's row. `newest_epoch` is its newest valid Open, fenced or not."""

    name: str
    newest_epoch: int
    checkpoint: Checkpoint = NO_CHECKPOINT
    commit_offset: int = -1
    metadata: Metadata = _NO_METADATA

    @property
    def last_commit(self) -> LastCommit | None:
        """Its last valid commit, or None before its first."""
        if self.checkpoint == NO_CHECKPOINT:
            return None
        return LastCommit(self.checkpoint, self.commit_offset, self.metadata)


class PartitionState(NamedTuple):
    """One partition: its newest valid Open, fenced or not, and the end offset of its last valid commit."""

    partition: int
    newest_epoch: int
    committed_position: int


class LiveEpoch(NamedTuple):
    """A valid Open that nothing has fenced yet."""

    epoch: int
    writer: str
    nonce: bytes
    partitions: frozenset[int]


class MetaRecord(NamedTuple):
    """A committed meta record: the last value that a writer gave to a key."""

    writer: str
    key: str
    value: bytes


@dataclass(frozen=True, kw_only=True)  # Without slots, because of its cached property.
class LedgerState:
    """The ledger folded up to `position`, the next ledger offset to fold."""

    position: int = 0
    writers: tuple[WriterState, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    live: tuple[LiveEpoch, ...] = ()
    meta: tuple[MetaRecord, ...] = ()
    accepted: tuple[LossRange, ...] = ()
    restarted: int = NO_EPOCH
    """The offset of the newest Restart; every live epoch lies above it."""

    @cached_property
    def committed_positions(self) -> dict[int, int]:
        """The committed position of every partition that has one. Cached for logs of many partitions."""
        return {row.partition: row.committed_position for row in self.partitions if row.committed_position}

    @property
    def commits(self) -> dict[str, LastCommit]:
        """Every writer's last valid commit, but for writers without one, or that ended with a final one."""
        return {row.name: last for row in self.writers if (last := row.last_commit)}

    @property
    def begins_at(self) -> int:
        """The position below which the log has no history of its own: where a copy was put, else 0."""
        return max((row.commit_offset + 1 for row in self.writers if row.name == COPIER), default=0)

    def last_commit(self, writer: str) -> LastCommit | None:
        """Return the writer's last valid commit, or None before its first."""
        return self.commits.get(writer)

    def is_overtaken(self, epoch: int, partitions: Collection[int]) -> bool:
        """Return whether one of the partitions has a newer owner than the Open at `epoch`."""
        return any(row.newest_epoch > epoch for row in self.partitions if row.partition in partitions)

    def to_datum(self) -> dict[str, Any]:
        """Return the state as an Avro datum (`avsc/ledger_state.avsc`)."""
        return datum_of(
            self,
            writers=[{**row._asdict(), **row.checkpoint.to_fields("checkpoint")} for row in self.writers],
            partitions=[row._asdict() for row in self.partitions],
            live=[{**row._asdict(), "partitions": sorted(row.partitions)} for row in self.live],
            meta=[row._asdict() for row in self.meta],
            accepted=[row._asdict() for row in self.accepted],
        )

    @classmethod
    def from_datum(cls, datum: Mapping[str, Any]) -> "LedgerState":
        """Read an Avro datum."""
        return cls(
            position=datum["position"],
            writers=tuple(WriterState(**Checkpoint.from_fields(row, "checkpoint")) for row in datum["writers"]),
            partitions=tuple(PartitionState(**row) for row in datum["partitions"]),
            live=tuple(LiveEpoch(**row)._replace(partitions=frozenset(row["partitions"])) for row in datum["live"]),
            meta=tuple(MetaRecord(**row) for row in datum["meta"]),
            accepted=tuple(LossRange(**row) for row in datum["accepted"]),
            restarted=datum["restarted"],
        )


# ---- a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The log that was copied, up to a place in its ledger. Until it `is_finished`, the copy is closed and may grow."""

    log: str
    identity: LogIdentity
    place: Place
    is_finished: bool

    @classmethod
    def of(cls, state: LedgerState) -> "Origin | None":
        """Read the origin from a copy's state; None for a log that is no copy. Raises Corrupt."""
        last = state.last_commit(COPIER)
        if last is None:
            return None
        try:
            return cls(
                log=str(last.metadata["log"]),
                identity=LogIdentity.from_fields(last.metadata),
                place=Place.from_json(json.loads(str(last.metadata["place"]))),
                is_finished=last.metadata["is_finished"] is True,
            )
        except (KeyError, ValueError) as error:
            raise Corrupt(f"a copy does not name its origin: {error!r}", writer=COPIER) from error

    def to_metadata(self) -> Metadata:
        """Return the origin as the metadata of a commit."""
        return {
            "log": self.log,
            **asdict(self.identity),
            "place": json.dumps(self.place.to_json()),
            "is_finished": self.is_finished,
        }


def copied_state(state: LedgerState, origin: Origin, position: int, nonce: bytes) -> LedgerState:
    """Return the state of a copy at `position`, right behind its own Restart. It continues the copied `state`."""
    row = WriterState(COPIER, NO_EPOCH, Checkpoint(origin.place.position, nonce), metadata=origin.to_metadata())
    carried = [one._replace(newest_epoch=NO_EPOCH) for one in state.writers if one.last_commit and one.name != COPIER]
    rows = sorted((*carried, row), key=lambda one: one.name)
    return LedgerState(
        position=position,
        writers=tuple(one._replace(commit_offset=position - 1) for one in rows),
        meta=tuple(one for one in state.meta if one.key != SENDER),
        restarted=position - 1,
    )
