"""The ledger fold: which Opens and Commits are valid. A pure function of the ledger's records in order.

Rules (a property test removes each guard in turn and observes the violation that it prevents):
- An Open is valid if its `prior` and `last` equal the fold's at its offset. It fences, as a whole, every earlier epoch
  that shares a partition or the writer name. A late ghost of an Open is void, so it fences no one.
- A Commit is valid if its epoch is live with the same nonce and owns all its partitions. It must continue the writer's
  last checkpoint with a greater id. Its extents must be possible ranges at or above the committed positions.
- A void record changes nothing but the position. A final commit ends the writer's row and its epoch.
- A Mark changes no state. A Restart at or above its position ends every epoch; later Opens must name it or a newer
  epoch as `prior`.
- A fold that began below a Restart's position stops. So does a fold whose owner had followed another fold past that
  position: commits that were valid there may not count any more.
- Records are linked: each Open and each Commit names the place that its writer had folded. If the fold has another
  record there, or ends below it, the ledger lost its tail and grew again. Only a later Restart resolves that.

Invariants:
- Every reader that folds the same prefix has the same state, whether it starts at 0 or from a `LedgerState`.
- Committed positions and `position` never go back.
- A record whose epoch is not live proves no loss: it may stem from an earlier log, or from before a Restart.
"""

from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol

from statelog.errors import OffsetGone
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Entry
from statelog.schemas.ledger.inline import Carried, CommitContents, partitions_in
from statelog.schemas.ledger.place import ORIGIN, LastRecord, LogIdentity, Metadata, Place
from statelog.schemas.ledger.records import AcceptLoss, Commit, CommitBody, LedgerRecord, Mark, Open, Restart
from statelog.schemas.ledger.state import (
    NO_EPOCH,
    LastCommit,
    LedgerState,
    LiveEpoch,
    MetaRecord,
    PartitionState,
    WriterState,
)
from statelog.schemas.names import COPIER

_MOST_PENDING_BYTES = 8 << 20
_MOST_HASHES = 1 << 22
"""At least so many of the newest records are compared with later witnesses. 32 MiB."""
_UNKNOWN = 0
"""The hash of an offset without a record, or with one whose hash the caller does not know."""
MOST_OFFSETS = 1 << 56
"""No partition reaches this offset: a hundred million records a second need two decades."""


class VoidReason(StrEnum):
    """Why a record is void."""

    OTHER_LOG = "it was written for another log"
    STALE_OPEN = "its writer had not observed the newest Open or checkpoint"
    UNKNOWN_EPOCH = "no valid Open has this epoch and nonce"
    FENCED = "a newer writer owns its partitions or its name"
    NOT_OWNED = "it names a partition that its writer does not own"
    WRONG_BASE = "it does not continue the writer's last checkpoint"
    NOT_LATER = "its checkpoint id is not greater than the last one"
    IMPOSSIBLE = "it lists offsets that no log has"
    OVERLAP = "it lists change sets below the committed position"


class Void(NamedTuple):
    """The verdict on a void record; `detail` names the values that differ."""

    reason: VoidReason
    detail: str = ""


class ProvedLoss(NamedTuple):
    """The record at `offset` proves that the ledger lost others. `other`: the record that its writer had observed."""

    offset: int
    what: str
    other: LastRecord | None = None


class LedgerFold:
    """Folds records one by one. Holds no clients and does no I/O; `freeze` gives the state as a value."""

    def __init__(self, identity: LogIdentity, state: LedgerState | None = None, last: LastRecord | None = None) -> None:
        """Start from a state. `last`: the record right below its position, if known."""
        state = state or LedgerState()
        self.identity = identity
        self.start = self.position = state.position
        self.loss: ProvedLoss | None = None
        """Proof that the ledger lost records; None again after a later Restart."""
        self._first = last.offset if last else state.position
        self._hashes = array("Q", [last.hash] if last else [])
        """The hash of every record from offset `_first` on."""
        self.accepted = state.accepted
        """The ranges that a person accepted as lost."""
        self.restarted = state.restarted
        """The offset of the newest Restart, -1 before the first: a person accepted the losses up to there."""
        self.followed = 0
        """The position up to which the owner has followed another fold; 0 if none."""
        self._forfeited: list[tuple[int, int]] = []
        """Ledger ranges (start, end] that a folded Restart may have forfeited: its position, and its own offset."""
        self._rows = {row.name: row for row in state.writers}
        self._newer: dict[str, tuple[int, Commit]] = {}
        """Offset and last commit of writers whose row is older: metadata is decoded on demand."""
        self._live = {epoch.epoch: epoch for epoch in state.live}
        self._newest = {row.partition: row.newest_epoch for row in state.partitions if row.newest_epoch != NO_EPOCH}
        self._committed = {row.partition: row.committed_position for row in state.partitions if row.committed_position}
        self._meta = {(record.writer, record.key): record.value for record in state.meta}
        self._pending_meta: list[tuple[str, Commit]] = []
        self._pending_bytes = 0

    # ---- the state

    def last_commit(self, writer: str) -> LastCommit | None:
        """Return the writer's last valid commit, or None before its first."""
        return self._row(writer).last_commit if writer in self._rows else None

    def last_checkpoint(self, writer: str) -> Checkpoint:
        """Return the checkpoint that the writer's next commit has to continue."""
        if writer in self._newer:
            return self._newer[writer][1].checkpoint
        row = self._rows.get(writer)
        return row.checkpoint if row else NO_CHECKPOINT

    def prior(self, writer: str, partitions: Iterable[int]) -> int:
        """Return the newest epoch on any of the partitions or of the writer's name: the next Open has to name it."""
        mine = self.newest_epoch(writer)
        return max([self.restarted, mine, *(self._newest.get(partition, NO_EPOCH) for partition in partitions)])

    def next_open(self, writer: str, partitions: tuple[int, ...], nonce: bytes, witness: Place) -> Open:
        """Make the Open of a writer that has folded up to `witness`. It is valid if nothing comes in between."""
        return Open(
            writer=writer,
            partitions=partitions,
            nonce=nonce,
            prior=self.prior(writer, partitions),
            last=self.last_checkpoint(writer),
            identity=self.identity,
            witness=witness,
        )

    def newest_epoch(self, writer: str) -> int:
        """Return the writer's newest valid Open, fenced or not; -1 if it has none."""
        row = self._rows.get(writer)
        return row.newest_epoch if row else NO_EPOCH

    def live_epoch(self, epoch: int) -> LiveEpoch | None:
        """Return the Open at that offset, if it is valid and not fenced."""
        return self._live.get(epoch)

    def committed_position(self, partition: int) -> int:
        """Return the end offset of the last valid commit in a partition; 0 before the first."""
        return self._committed.get(partition, 0)

    def freeze(self) -> LedgerState:
        """Return the state as a value. Raises CorruptLedger."""
        self._apply_meta()
        partitions = sorted(self._newest.keys() | self._committed.keys())
        return LedgerState(
            position=self.position,
            writers=tuple(self._row(name) for name in sorted(self._rows)),
            partitions=tuple(
                PartitionState(p, self._newest.get(p, NO_EPOCH), self._committed.get(p, 0)) for p in partitions
            ),
            live=tuple(self._live[epoch] for epoch in sorted(self._live)),
            meta=tuple(MetaRecord(*key, value) for key, value in sorted(self._meta.items())),
            accepted=self.accepted,
            restarted=self.restarted,
        )

    def _row(self, writer: str) -> WriterState:
        if writer in self._newer:
            offset, commit = self._newer[writer]
            metadata, newest_epoch = commit.read_body().metadata, self._rows[writer].newest_epoch
            self._rows[writer] = WriterState(writer, newest_epoch, commit.checkpoint, offset, metadata)
            del self._newer[writer]
        return self._rows[writer]

    # ---- folding

    def apply(self, offset: int, record: LedgerRecord | None, record_hash: int = _UNKNOWN) -> Void | None:
        """Fold the record at `offset` (None: a foreign one). Return None if it is valid, else why it is void.

        `record_hash` is the xxh3-64 of its value; without it no later witness is compared with this record. Offsets may
        have gaps, but never go back. Raises OffsetGone if the fold began below the position of a Restart.
        """
        if isinstance(record, Restart):
            self._restart(offset, record)
        elif self.loss is None:
            self.loss = self._contradiction(offset, record)
        void = self.check(record)
        self._pass(offset, record_hash)
        if void is None:
            if isinstance(record, Commit):  # Nearly all are.
                self._commit(offset, record)
            elif isinstance(record, Open):
                self._open(offset, record)
            elif isinstance(record, AcceptLoss):
                self.accepted += record.ranges
        return void

    def apply_commits(self, offset: int, commits: Sequence[Commit], record_hash: int = _UNKNOWN) -> list[Void | None]:
        """Fold several commits of the record at `offset`, one after the other. Return as `apply`, for each."""
        voids: list[Void | None] = []
        for commit in commits:
            self.loss = self.loss or self._contradiction(offset, commit)
            void = self._check_commit(commit)
            if void is None:
                self._commit(offset, commit)
            voids.append(void)
        self._pass(offset, record_hash)
        return voids

    def _pass(self, offset: int, record_hash: int) -> None:
        assert offset >= self.position, f"ledger offset {offset} lies below position {self.position}"
        self.position = offset + 1
        self._note(offset, record_hash)

    def advance(self, position: int) -> None:
        """Move on to `position`; no record lies in between."""
        assert position >= self.position, f"ledger position {position} lies below {self.position}"
        self.position = position

    def check(self, record: LedgerRecord | None) -> Void | None:
        """Return the verdict on `record` if it came next, without folding it."""
        if isinstance(record, Commit):
            return self._check_commit(record)
        return self._check_open(record) if isinstance(record, Open) else None

    def hash_at(self, offset: int) -> int:
        """Return the hash of the record that was folded at an offset; 0 if there is none, or it is unknown."""
        at = offset - self._first
        return self._hashes[at] if 0 <= at < len(self._hashes) else _UNKNOWN

    @property
    def hashed_from(self) -> int:
        """The offset below which no hash is known."""
        return self._first

    def _note(self, offset: int, record_hash: int) -> None:
        gap = offset - self._first - len(self._hashes)
        if gap:
            self._hashes.extend([_UNKNOWN] * gap)
        self._hashes.append(record_hash)
        if len(self._hashes) > 2 * _MOST_HASHES:
            del self._hashes[:_MOST_HASHES]
            self._first += _MOST_HASHES

    def _contradiction(self, offset: int, record: LedgerRecord | None) -> "ProvedLoss | None":
        """Return the loss that a record proves, if any: its witness differs from the fold."""
        witness = None
        if isinstance(record, Commit):
            live = self._live.get(record.epoch)
            witness = record.witness_numbers if live is not None and live.nonce == record.nonce else None
        elif isinstance(record, Open) and record.identity == self.identity:
            witness = record.witness.numbers
        if witness is not None:
            position, last_offset, last_hash = witness
            if position > offset:
                return ProvedLoss(offset, f"the writer of a record had observed the ledger up to {position}")
            known = self.hash_at(last_offset) if last_offset > self.restarted else _UNKNOWN
            if known != last_hash and known != _UNKNOWN:
                what = f"the writer of a record had observed another one at {last_offset}"
                return ProvedLoss(offset, what, LastRecord(last_offset, last_hash))
        if self.position == 0 and not isinstance(record, Mark):
            return ProvedLoss(offset, "the ledger does not begin with its mark")
        return None

    def _check_open(self, record: Open) -> Void | None:
        if record.identity != self.identity:
            return Void(VoidReason.OTHER_LOG)
        prior = self.prior(record.writer, record.partitions)
        if record.prior != prior:
            return Void(VoidReason.STALE_OPEN, f"it observed epoch {record.prior}, the newest is {prior}")
        last = self.last_checkpoint(record.writer)
        if record.last != last:
            return Void(VoidReason.STALE_OPEN, f"it observed checkpoint {record.last.id}, the last is {last.id}")
        return None

    def _check_commit(self, record: Commit) -> Void | None:
        live = self._live.get(record.epoch)
        if live is None:
            return self._not_live(record)
        if live.nonce != record.nonce:
            return Void(VoidReason.UNKNOWN_EPOCH, f"epoch {record.epoch} has another nonce")
        extents = record.extents
        for partition, _, _ in extents:
            if partition not in live.partitions:
                return Void(VoidReason.NOT_OWNED, f"partition {partition}")
        if record.inline is not None and not partitions_in(record.inline.partitions) <= live.partitions:
            return Void(VoidReason.NOT_OWNED, "of its inline changes")
        last = self.last_checkpoint(live.writer)
        if record.base != last:
            return Void(VoidReason.WRONG_BASE, f"it continues {record.base.id}, the last one is {last.id}")
        if record.checkpoint.id <= last.id:
            return Void(VoidReason.NOT_LATER, f"{record.checkpoint.id} after {last.id}")
        for partition, first_offset, end_offset in extents:
            if not 0 <= first_offset < end_offset <= MOST_OFFSETS:
                return Void(VoidReason.IMPOSSIBLE, f"partition {partition}: from {first_offset} to {end_offset}")
            committed = self._committed.get(partition, 0)
            if first_offset < committed:
                return Void(VoidReason.OVERLAP, f"partition {partition}: offset {first_offset} below {committed}")
        return None

    def _not_live(self, record: Commit) -> Void:
        """Return why the epoch is not live: fenced, if there is a newer Open on its partitions, else never valid."""
        partitions = {partition for partition, _, _ in record.extents}
        if record.inline is not None:
            partitions |= partitions_in(record.inline.partitions)
        newest = [self.restarted, *(self._newest.get(partition, NO_EPOCH) for partition in partitions)]
        by_epoch = max([*newest, *(row.newest_epoch for row in self._rows.values())], default=NO_EPOCH)
        if by_epoch > record.epoch:
            live = self._live.get(by_epoch)
            by = f", of {live.writer}" if live else ""
            return Void(VoidReason.FENCED, f"epoch {record.epoch} is not live, the newest is {by_epoch}{by}")
        return Void(VoidReason.UNKNOWN_EPOCH, f"epoch {record.epoch}")

    def _open(self, offset: int, record: Open) -> None:
        taken = frozenset(record.partitions)
        for epoch, live in list(self._live.items()):
            if live.writer == record.writer or live.partitions & taken:
                del self._live[epoch]
        self._live[offset] = LiveEpoch(offset, record.writer, record.nonce, taken)
        row = self._rows.get(record.writer)
        self._rows[record.writer] = row._replace(newest_epoch=offset) if row else WriterState(record.writer, offset)
        for partition in taken:
            self._newest[partition] = offset

    def _commit(self, offset: int, record: Commit) -> None:
        writer = self._live[record.epoch].writer
        self._newer[writer] = offset, record
        committed = self._committed
        for partition, _, end_offset in record.extents:
            if end_offset > committed.get(partition, 0):
                committed[partition] = end_offset
        if record.has_meta:  # Left undecoded up to a bound: most folds are never asked for meta records.
            self._pending_meta.append((writer, record))
            self._pending_bytes += len(record.body)
            if self._pending_bytes > _MOST_PENDING_BYTES:
                self._apply_meta()
        if record.final:
            del self._rows[writer], self._newer[writer], self._live[record.epoch]

    def _restart(self, offset: int, record: Restart) -> None:
        if record.position > self.start:
            raise OffsetGone(
                "the ledger continues from a snapshot, but the fold began below it",
                offset=offset,
                position=record.position,
                folded_from=self.start,
                reason=record.reason,
                hint="Start from a snapshot at the position or above: a loss was accepted, or a copy is not finished",
            )
        # A Restart forfeits nothing if the whole ledger counts, if it is a copy's, or if a newer one came before.
        if record.position > max(0, self.restarted) and record.operator != COPIER:
            self._forfeited.append((record.position, offset))
            self.check_followed(self.followed)
        self._live.clear()
        self.restarted, self.loss = offset, None

    def check_followed(self, position: int) -> None:
        """Raise OffsetGone if a folded Restart may have forfeited commits below this followed position.

        That is so if the snapshot that counts lies below the position, and the Restart at or above.
        """
        for counts_at, restarted in self._forfeited:
            if counts_at < position <= restarted:
                raise OffsetGone(
                    "a loss was accepted, and commits that were followed may be part of it",
                    offset=restarted,
                    position=counts_at,
                    followed_to=position,
                    hint="Start from the newest snapshot, with an empty target",
                )

    def meta_record(self, writer: str, key: str) -> bytes | None:
        """Return the committed meta record of a writer; None if there is none."""
        self._apply_meta()
        return self._meta.get((writer, key))

    def _apply_meta(self) -> None:
        for writer, record in self._pending_meta:
            for handle in record.read_body().handles:
                for key, value in chain.from_iterable(step.meta.items() for step in handle.steps):
                    self._meta.pop((writer, key), None)
                    if value is not None:
                        self._meta[writer, key] = value
        self._pending_meta, self._pending_bytes = [], 0


class LedgerBase(Protocol):
    """A start for a fold: the state at a place. Manifests and subscriptions are such bases."""

    @property
    def state(self) -> LedgerState:
        """The ledger folded up to the place."""
        ...

    @property
    def place(self) -> Place:
        """The position of the state, and the record below it, if known."""
        ...


class Folded(NamedTuple):
    """The ledger folded up to a place: a `LedgerBase`."""

    state: LedgerState = LedgerState()
    place: Place = ORIGIN


class _Valid(NamedTuple):
    writer: str
    commit: Commit
    timestamp_ms: int
    place: Place


class ValidCommit(_Valid):
    """A commit that the fold found valid.

    `timestamp_ms`: Kafka's time in milliseconds since 1970; -1 if the ledger has none.
    `place`: right behind the commit, the first state that has its changes.
    """

    @property
    def offset(self) -> int:
        """Its ledger offset."""
        return self.place.position - 1

    @property
    def position(self) -> int:
        """The ledger position right behind it."""
        return self.place.position

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it confirms."""
        return self.commit.checkpoint.id

    @cached_property
    def body(self) -> CommitBody:
        """Its metadata and handles, decoded once. Raises CorruptLedger."""
        return self.commit.read_body()

    @property
    def metadata(self) -> Metadata:
        """The writer's metadata. Raises CorruptLedger."""
        return self.body.metadata

    @property
    def contents(self) -> CommitContents:
        """All that it makes history. Decoded on each call, because there may be many commits. Raises CorruptLedger."""
        commit, last = self.commit, self.place.last
        handles = commit.read_body().handles if commit.packed_extents else ()
        if commit.inline is None or last is None:
            return CommitContents(handles)
        return CommitContents(handles, Carried(last, commit.batch_start, commit.inline))

    def entries(self, partitions: Container[int]) -> Iterator[Entry]:
        """Yield the change sets that it lists in these partitions. Raises CorruptLedger."""
        return (entry for handle in self.body.handles for entry in handle.entries if entry.partition in partitions)
