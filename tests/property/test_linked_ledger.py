"""Linked records: the fold alone finds a ledger that lost its tail and grew again, for readers that know nothing else.

A world of writers that open, commit, stop reading for a while, or begin from a snapshot, on the real fold and records.
After the ledger loses its tail, a new reader must raise as soon as a record exists whose writer had folded a lost one.
Without a loss no reader may ever raise.
"""

import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from statelog.schemas.ledger.fold import Folded, LedgerFold, Void
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, Mark, Open, Restart, decode, encode

SEEDS = 1_500
_IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")
_STRANGER = replace(_IDENTITY, ledger_topic_id="an earlier ledger of this name")
_DIGEST = bytes(32)
_NAMES = "ABC"
_NO_WITNESS = struct.pack("<qq8x", 0, -1)


class Reader:
    """A process that folds the ledger from a base, and knows the position that it has reached."""

    def __init__(self, base: Folded, fold: type[LedgerFold]) -> None:
        self.fold = fold(_IDENTITY, base.state, base.place.last)
        self.place = base.place

    def read(self, ledger: list[bytes]) -> None:
        """Fold all new records, without comparing the ones that were folded before."""
        for offset in range(self.fold.position, len(ledger)):
            last = LastRecord.of(offset, ledger[offset])
            self.fold.apply(offset, decode(ledger[offset]), last.hash)
            self.place = Place(offset + 1, last)


class World:
    """The ledger, the newest snapshot, and writers, each with one epoch and folds at random times."""

    def __init__(self, seed: int, fold: type[LedgerFold] = LedgerFold) -> None:
        self.rng = random.Random(seed)
        self.ledger: list[bytes] = [encode(Mark(_DIGEST))]
        self.base = Folded()
        self.writers: dict[str, tuple[Reader, int, bytes]] = {}
        self.is_lost = False
        self.knew: set[str] = set()
        """The writers that have folded a record that is lost."""
        self._lives = 0
        self._fold = fold

    def append(self, record: LedgerRecord) -> int:
        """Append a record. Return its offset."""
        self.ledger.append(encode(record))
        return len(self.ledger) - 1

    def stranger(self) -> Reader:
        """Return a reader that knows the newest snapshot alone, and has folded to the end."""
        reader = Reader(self.base, self._fold)
        reader.read(self.ledger)
        return reader

    def open(self, writer: str, *, knows: Reader | None = None) -> None:
        """Open a writer, by a process that may have folded the ledger before."""
        reader = knows or self.stranger()
        reader.read(self.ledger)
        self._lives += 1
        nonce, fold = self._lives.to_bytes(16, "big"), reader.fold
        record = Open(
            writer=writer,
            partitions=(_NAMES.index(writer),),
            nonce=nonce,
            prior=fold.prior(writer, (_NAMES.index(writer),)),
            last=fold.last_checkpoint(writer),
            identity=_IDENTITY,
            witness=reader.place,
        )
        epoch = self.append(record)
        reader.read(self.ledger)
        self.writers[writer] = reader, epoch, nonce
        self.knew.discard(writer)

    def commit(self, writer: str) -> tuple[int, bool]:
        """Commit by the writer's fold, which may be old. Return the offset, and whether its epoch is live."""
        reader, epoch, nonce = self.writers[writer]
        base, judge = reader.fold.last_checkpoint(writer), self.stranger().fold
        live = judge.live_epoch(epoch)
        commit = Commit.of(
            epoch=epoch,
            nonce=nonce,
            base=base,
            checkpoint=Checkpoint(base.id + 1, nonce),
            metadata={},
            handles=[],
            witness=reader.place,
        )
        return self.append(commit), live is not None and live.nonce == nonce

    def lose_tail(self) -> None:
        """Lose some of the records above the newest snapshot."""
        end = self.rng.randrange(max(1, self.base.state.position), len(self.ledger))
        del self.ledger[end:]
        self.is_lost = True
        self.knew = {writer for writer, (reader, _, _) in self.writers.items() if reader.place.position > end}


def _proofs(world: World) -> Iterator[tuple[int, Place]]:
    """Play a history; yield the proofs of the loss: offset and witness of each record that counts."""
    rng = world.rng
    for _ in range(rng.randrange(4, 50)):
        writer, x = rng.choice(_NAMES), rng.random()
        if writer not in world.writers or x < 0.1:
            world.open(writer)
        elif x < 0.55:
            place = world.writers[writer][0].place
            offset, is_live = world.commit(writer)
            if is_live and writer in world.knew:
                yield offset, place
            if rng.random() < 0.7 and writer not in world.knew:
                world.writers[writer][0].read(world.ledger)
        elif x < 0.8 and not world.is_lost:
            reader = world.stranger()
            world.base = Folded(reader.fold.freeze(), reader.place)
        elif x < 0.9 and not world.is_lost and len(world.ledger) > max(1, world.base.state.position):
            world.lose_tail()
        else:
            world.ledger.append(b"SLVD" + rng.randbytes(3))


def _play(seed: int, fold: type[LedgerFold] = LedgerFold) -> str:
    world = World(seed, fold)
    for offset, place in _proofs(world):
        reader = world.stranger()
        assert reader.fold.loss is not None, (
            f"seed {seed}: the record at {offset} had read {place}, and no reader raises"
        )
        _accept(world, reader)
        return "told"
    assert world.is_lost or world.stranger().fold.loss is None, f"seed {seed}: an error without a loss"
    return "nobody who knew has written" if world.is_lost else "nothing lost"


def _accept(world: World, reader: Reader) -> None:
    """Accept the loss, as a person does: from there on nobody gets an error, though all processes go on to write."""
    restart = Restart(digest=_DIGEST, position=0, reason="disk", operator="ann")
    while len(world.ledger) <= max(place.place.position for place, _, _ in world.writers.values()):
        world.append(restart)
    world.append(restart)
    for writer in world.writers:
        world.commit(writer)
        world.open(writer, knows=world.stranger())
        world.commit(writer)
    assert world.stranger().fold.loss is None, "an error after a person accepted the loss"
    reader.read(world.ledger)
    assert reader.fold.loss is None, "an error after a person accepted the loss behind the fold"


def test_records_are_linked() -> None:
    """A new reader raises at the first record whose writer knew more; none does without a loss or behind a Restart."""
    outcomes = Counter(map(_play, range(SEEDS)))
    assert min(outcomes.values()) > SEEDS // 20, outcomes
    assert len(outcomes) == 3, outcomes


class _Unlinked(LedgerFold):
    """A fold that compares no witness of a Commit."""

    def apply(self, offset: int, record: LedgerRecord | None, record_hash: int = 0) -> Void | None:
        if isinstance(record, Commit):
            record = replace(record, packed_witness=_NO_WITNESS)
        return super().apply(offset, record, record_hash)


class _Hashless(LedgerFold):
    """A fold that compares positions, and no records."""

    def hash_at(self, offset: int) -> int:
        return 0


@pytest.mark.parametrize("mutant", [_Unlinked, _Hashless])
def test_each_guard_is_needed(mutant: type[LedgerFold]) -> None:
    """Without the witness of commits, or without the hashes, some history loses its tail and no new reader raises."""
    with pytest.raises(AssertionError, match="no reader raises"):
        for seed in range(SEEDS):
            _play(seed, mutant)


def test_a_record_of_an_earlier_log_proves_nothing() -> None:
    """A record that a deleted log's writer sends to the topics of the new one is no proof of a loss."""
    world = World(1)
    world.open("A")
    far = Place(1_000, LastRecord(999, 7))
    reader, epoch, _ = world.writers["A"]
    base = reader.fold.last_checkpoint("A")
    foreign = Commit.of(
        epoch=epoch, nonce=b"another epoch...", base=base, checkpoint=Checkpoint(1, b"another epoch..."), metadata={},
        handles=[], witness=far,
    )  # fmt: skip
    world.append(foreign)
    last = reader.fold.last_checkpoint("B")
    world.append(
        Open(writer="B", partitions=(1,), nonce=bytes(16), prior=-1, last=last, identity=_STRANGER, witness=far)
    )
    assert world.stranger().fold.loss is None


def test_the_newest_hashes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that follows a ledger for years retains a bounded number of hashes."""
    monkeypatch.setattr("statelog.schemas.ledger.fold._MOST_HASHES", 4)
    fold = LedgerFold(_IDENTITY)
    for offset in range(21):
        fold.apply(offset, Mark(bytes(32)), offset + 1)
        assert fold.hashed_from <= max(0, offset - 3)
        assert [fold.hash_at(at) for at in range(fold.hashed_from, offset + 1)] == [
            at + 1 for at in range(fold.hashed_from, offset + 1)
        ]
    assert fold.hashed_from >= 12
    assert fold.hash_at(fold.hashed_from - 1) == 0
