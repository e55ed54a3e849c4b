"""`History` on random worlds: lost records that a process has read are reported, by its first read or within the
second.

Three processes follow one ledger on the twin of the port: they open, commit, read, begin again from a remembered
position, roll up, and truncate. The ledger loses its tail once, any process writes on, and a person accepts the loss in
the end.

A. The first read of a process that had read a lost record raises, and no commit of it is found valid later than
   COMPARE_S after the loss. The exception is a ledger that was truncated past all that the process knew.
B. No process gets a loss error without a loss.
C. Behind a Restart every new process goes on, and one that holds forfeited records gets an error.
"""

import random
from collections import Counter
from functools import partial
from typing import cast

import pytest

from statelog.errors import BeyondEnd, DataLoss, OffsetGone
from statelog.history import COMPARE_S, History, Landed, LedgerSource
from statelog.history.following import Following
from statelog.schemas.ledger.fold import Folded, LedgerFold
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.place import ORIGIN, LogIdentity, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, Mark, Open, Restart, encode
from statelog.schemas.snapshot.manifest import Manifest
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.kafka import spec_of, write_all

SEEDS = 1_500
_TOPIC = "log.ledger"
_IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")
_DIGEST = bytes(32)


class Snapshot(Folded):
    """The part of a manifest that a History needs."""

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.state.position


class Snapshots:
    """The snapshots of the log, newest last; the newest two are retained."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []

    def newest_sound(self, *, max_age_s: float = 0.0) -> Manifest | None:
        """Return the newest one."""
        return cast("Manifest", self.kept[-1]) if self.kept else None

    def at(self, position: int) -> Manifest | None:
        """Return the snapshot of a position."""
        return next((cast("Manifest", one) for one in self.kept if one.position == position), None)


class Process:
    """One process: its History, a producer, and a writer of its own, whose partition is its number."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        kafka = world.kafka.join()
        self.kafka = kafka
        self.history = History(
            LedgerSource(
                kafka=kafka,
                topic=_TOPIC,
                identity=_IDENTITY,
                snapshots=world.snapshots,
                clock=lambda: world.now_s,
                patience_s=lambda: 0.0,
            )
        )
        self.producer = kafka.producer()
        self.epoch = -1
        self.nonce = bytes(16)

    @property
    def writer(self) -> str:
        """Its writer's name."""
        return "ABC"[self.number]

    def append(self, record: LedgerRecord) -> Landed:
        """Append, and take the verdict."""
        return self.history.append(self.producer, record).result()

    def open(self) -> None:
        """Open the writer."""
        self.history.read()
        self.nonce = self.world.rng.randbytes(16)
        prior, last = self.history.ask(
            lambda fold: (fold.prior(self.writer, [self.number]), fold.last_checkpoint(self.writer))
        )
        landed = self.append(
            Open(
                writer=self.writer,
                partitions=(self.number,),
                nonce=self.nonce,
                prior=prior,
                last=last,
                identity=_IDENTITY,
                witness=self.history.place,
            )
        )
        assert landed.void is None
        self.epoch = landed.offset

    def commit(self) -> None:
        """Commit progress."""
        base = self.history.ask(lambda fold: fold.last_checkpoint(self.writer))
        self.append(
            Commit.of(
                epoch=self.epoch,
                nonce=self.nonce,
                base=base,
                checkpoint=Checkpoint(base.id + 1, self.nonce),
                metadata={},
                handles=[],
                witness=self.history.place,
            )
        )


class World:
    """The cluster, the snapshots, the time, and the processes that had read lost records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.kafka = MemoryKafka()
        self.kafka.create_topic(spec_of(_TOPIC))
        self.snapshots = Snapshots()
        write_all(self.kafka, _TOPIC, 0, [encode(Mark(_DIGEST))])
        self.processes = [Process(self, number) for number in range(3)]
        for one in self.processes:
            one.open()
        self.lost_s: float | None = None
        self.knew: set[Process] = set()

    def fold(self) -> LedgerFold:
        """Return a fold by a new reader."""
        stranger = Process(self, 0)
        stranger.history.read()
        return stranger.history.ask(lambda fold: fold)

    def truncate(self, process: Process) -> None:
        """Put a snapshot of the state that a process has read, and truncate below the one before."""
        process.history.read_to(process.history.end(), self.now_s)
        view = process.history.view()
        newest = self.snapshots.newest_sound()
        if view.place.position <= (newest.position if newest else 0):
            return
        self.snapshots.kept.append(Snapshot(view.state, view.place))
        if len(self.snapshots.kept) > 1:
            self.kafka.delete_records(_TOPIC, {0: self.snapshots.kept[-2].position - 1})
        del self.snapshots.kept[:-2]

    def lose_tail(self) -> None:
        """Lose the tail above the newest snapshot, or some of it."""
        newest = self.snapshots.newest_sound()
        start, end = self.kafka.offsets(_TOPIC, [0])[0]
        least = max(start + 1, newest.position if newest else 1)
        if least < end:
            to = self.rng.randrange(least, end)
            self.kafka.cluster.lose_tail(_TOPIC, 0, to)
            self.lost_s = self.now_s
            self.knew = {one for one in self.processes if one.history.place.position > to}


def _step(world: World, process: Process) -> None:
    x, is_knowing = world.rng.random(), process in world.knew
    if x < 0.45:
        for _ in range(world.rng.choice([1, 1, 1, 3])):
            process.commit()
        assert not is_knowing or (world.lost_s is not None and world.now_s - world.lost_s < COMPARE_S), "A: too late"
    elif x < 0.65:
        before = process.history.place
        process.history.read()
        is_gone = process.history.ask(lambda fold: fold.start) > before.position
        is_young = world.lost_s is not None and world.now_s - world.lost_s < COMPARE_S
        assert not is_knowing or is_gone or is_young, "A: a read that should have raised"
        if is_gone or not is_young:
            world.knew.discard(process)
    elif x < 0.75:
        before = process.history.place
        world.truncate(process)
        is_gone = process.history.ask(lambda fold: fold.start) > before.position
        assert not is_knowing or is_gone, "A: a round that should have raised"
        world.knew.discard(process)
    elif x < 0.83 and world.lost_s is None:
        world.lose_tail()
    else:
        place = process.history.place
        process.history.close()
        again = world.processes[process.number] = Process(world, process.number)
        again.history.read()
        is_below = place.last_offset < again.history.ask(lambda fold: fold.start)
        again.history.expect([place])
        assert not is_knowing or is_below, "A: an opening from a lost place that should have raised"
        again.open()


def _play(seed: int) -> str:
    world = World(seed)
    for _ in range(world.rng.randrange(5, 40)):
        world.now_s += world.rng.choice([0.01, 0.1, 0.6, 1.2])
        process = world.rng.choice(world.processes)
        try:
            _step(world, process)
        except OffsetGone:
            assert process in world.knew, "B: truncated without a loss"
            return "gone: truncated past all that it knew"
        except DataLoss as error:
            assert world.lost_s is not None, f"B: an error without a loss: {error}"
            _accept(world)
            return "told" if process in world.knew else "told by others"
        world.knew &= set(world.processes)
    return "nobody who knew has acted" if world.knew else "nothing lost"


def _hash_at(fold: LedgerFold, offset: int) -> int:
    return fold.hash_at(offset)


def _accept(world: World) -> None:
    """Accept the loss, as a person does; C."""
    newest = world.snapshots.newest_sound()
    reach = max([newest.position if newest else 0, *(one.history.place.position for one in world.processes)])
    end = world.kafka.offsets(_TOPIC, [0])[0].end
    record = encode(Restart(digest=_DIGEST, position=0, reason="disk", operator="ann"))
    write_all(world.kafka, _TOPIC, 0, [record] * max(1, reach + 1 - end))
    world.fold()
    for one in world.processes:
        place = one.history.place
        again = Process(world, one.number)
        again.open()
        again.commit()
        found = again.history.ask(partial(_hash_at, offset=place.last_offset))
        if found and place.last is not None and found != place.last.hash:
            with pytest.raises(DataLoss):
                Process(world, one.number).history.expect([place])


def test_a_lost_tail_is_told_to_whoever_had_read_it() -> None:
    """A process that had read a lost tail learns so by its first read, or within the second of a verdict.

    It gets no such error without a loss, nor behind a Restart.
    """
    outcomes = Counter(map(_play, range(SEEDS)))
    assert outcomes["told"] > SEEDS // 10, outcomes
    assert outcomes["nothing lost"] > SEEDS // 20, outcomes


def test_without_the_comparison_a_writer_is_told_valid_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison a writer gets a valid verdict too late, so the guard is needed."""

    def nothing(_now: Following) -> dict[int, int]:
        return {}

    monkeypatch.setattr(Following, "expected", nothing)
    with pytest.raises(AssertionError, match="A: "):
        for seed in range(SEEDS):
            _play(seed)


def test_without_the_place_of_the_last_fold_a_new_one_hides_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the position of the last fold a new one hides the loss, so the guard is needed."""

    def forget(history: History, _now: Following) -> None:
        vars(history).update(_known=ORIGIN, _is_lost=False)

    monkeypatch.setattr(History, "_agree", forget)
    with pytest.raises(AssertionError, match="A: "):
        for seed in range(SEEDS):
            _play(seed)


def test_a_place_beyond_the_end_is_told() -> None:
    """A remembered position beyond the end raises."""
    world = World(1)
    with pytest.raises(BeyondEnd):
        world.processes[0].history.read(Place(99))
