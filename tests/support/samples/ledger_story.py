"""A ledger built record by record, for tests that name one behaviour: opens, persists and commits with few words."""

from dataclasses import replace

from statelog.schemas.ledger.fold import LedgerFold, Void, VoidReason
from statelog.schemas.ledger.handle import Checkpoint, Entry, Handle, Step
from statelog.schemas.ledger.place import ORIGIN, LogIdentity
from statelog.schemas.ledger.records import Commit, LedgerRecord, Open

__all__ = ["IDENTITY", "Story", "nonce"]

IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")


def nonce(life: int) -> bytes:
    """Return the nonce of a writer's n-th incarnation."""
    return life.to_bytes(16, "big")


class Story:
    """A fold, the Opens so far, and the end of each data partition. Every Open is a new incarnation."""

    def __init__(self) -> None:
        self.fold = LedgerFold(IDENTITY)
        self.records: list[LedgerRecord | None] = []
        self.ends: dict[int, int] = {}
        self._opens: dict[int, Open] = {}
        self._lives = 0
        self._sqn = 0

    def add(self, record: LedgerRecord | None) -> Void | None:
        """Append a record to the ledger."""
        self.records.append(record)
        return self.fold.apply(len(self.records) - 1, record)

    def new_open(self, writer: str, *partitions: int) -> Open:
        """Return an Open that has read everything so far, not yet in the ledger."""
        self._lives += 1
        return Open(
            writer=writer,
            partitions=partitions,
            nonce=nonce(self._lives),
            prior=self.fold.prior(writer, partitions),
            last=self.fold.last_checkpoint(writer),
            identity=IDENTITY,
        )

    def open(self, writer: str, *partitions: int) -> int:
        """Open validly. Return the epoch."""
        record = self.new_open(writer, *partitions)
        epoch = len(self.records)
        assert self.add(record) is None
        self._opens[epoch] = record
        return epoch

    def persist(self, epoch: int, *partitions: int, after: Handle | None = None, meta: str = "") -> Handle:
        """Write one change set of one chunk to each partition. `after`: an unconfirmed handle to include."""
        mine = self._opens[epoch]
        self._sqn += 1
        base = after.checkpoint if after else self.fold.last_checkpoint(mine.writer)
        entries: list[Entry] = []
        for partition in partitions:
            first = self.ends.get(partition, 0)
            self.ends[partition] = first + 1
            entries.append(Entry(partition, self._sqn, 1, 10, 100, first, first + 1, 0, b"\1"))
        step = Step(checkpoint_id=base.id + 1, entries=tuple(entries), meta={"key": meta.encode()} if meta else {})
        if after is not None and after.nonce == mine.nonce:
            return replace(after, steps=(*after.steps, step))
        return Handle(identity=IDENTITY, writer=mine.writer, epoch=epoch, nonce=mine.nonce, base=base, steps=(step,))

    def new_commit(self, epoch: int, *handles: Handle, final: bool = False) -> Commit:
        """Return the commit of handles by the owner of `epoch`, not yet in the ledger."""
        return Commit.of(
            epoch=epoch,
            nonce=self._opens[epoch].nonce,
            base=handles[0].base,
            checkpoint=handles[0].checkpoint,
            metadata={"checkpoint": str(handles[0].checkpoint.id)},
            handles=handles,
            witness=ORIGIN,
            final=final,
        )

    def commit(self, epoch: int, *handles: Handle, final: bool = False) -> VoidReason | None:
        """Commit handles. Return why the commit is void, or None."""
        verdict = self.add(self.new_commit(epoch, *handles, final=final))
        return verdict.reason if verdict else None

    def last(self, writer: str) -> Checkpoint:
        """Return the writer's last checkpoint."""
        return self.fold.last_checkpoint(writer)
