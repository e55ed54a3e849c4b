"""A simulated world for the ledger rules: writers that open, persist, commit, crash and adopt, over a lossy network.

Writers of a few names over overlapping partitions work with the real records, handles and fold. A message may arrive
late (after its sender died), be lost, or lose its answer. Order per (sender, queue) holds and nothing is doubled, as
with an idempotent producer. One seed decides everything. `tests/property/test_fold_model.py` judges the history.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from statelog.errors import CheckpointMismatch
from statelog.schemas.ledger import records as ledger
from statelog.schemas.ledger.fold import LedgerFold, Void
from statelog.schemas.ledger.handle import Checkpoint, Entry, Handle, Step, gaps_of
from statelog.schemas.ledger.place import ORIGIN, LogIdentity
from statelog.schemas.ledger.records import Commit, LedgerRecord, Open

__all__ = ["IDENTITY", "PARTITIONS", "Chunk", "MakeFold", "Told", "World", "simulate", "span_of"]

IDENTITY = LogIdentity(cluster_id="cluster", data_topic_id="data", ledger_topic_id="ledger")
PARTITIONS = 3
NAMES: dict[str, list[tuple[int, ...]]] = {"A": [(0, 1), (0,), (1,)], "B": [(1, 2)], "C": [(0, 1, 2)]}
LEDGER = -1
SPAN = "span"

MakeFold = Callable[[], LedgerFold]
Callback = Callable[[int], None]


class Chunk(NamedTuple):
    """A record of the data topic: one change, of one change set. `value` is its position in the writer's source."""

    epoch: int
    nonce: bytes
    sqn: int
    writer: str
    value: int


class Told(NamedTuple):
    """An acknowledged commit of a process."""

    writer: str
    checkpoint: Checkpoint
    to: int


@dataclass(slots=True)
class _Message:
    sender: "Process"
    queue: int
    record: LedgerRecord | Chunk
    answer: Callback


def span_of(handle: Handle) -> tuple[int, int]:
    """Return the stretch of the writer's source that a handle covers, from its steps' meta records."""
    first, last = ((step.meta[SPAN] or b"").decode().split("-") for step in (handle.steps[0], handle.steps[-1]))
    return int(first[0]), int(last[1])


class World:
    """The ledger, the data topic, the network, and the storage of the callers."""

    def __init__(self, seed: int, make_fold: MakeFold) -> None:
        self.rng = random.Random(seed)
        self.make_fold = make_fold
        self.ledger: list[LedgerRecord] = []
        self.data: list[list[Chunk]] = [[] for _ in range(PARTITIONS)]
        self.network: list[_Message] = []
        self.told: list[Told] = []
        self.stored: dict[str, Handle] = {}  # the other side of a two-phase commit
        self.seen_end: dict[bytes, int] = {}  # how far the ledger reached when the opener with this nonce read it
        self.lives = 0
        self._fold = make_fold()
        self._verdicts: list[Void | None] = []

    def fold(self) -> LedgerFold:
        """Return the fold of the whole ledger, as a process sees it that reads to the end now."""
        for offset in range(len(self._verdicts), len(self.ledger)):
            self._verdicts.append(self._fold.apply(offset, self.ledger[offset]))
        return self._fold

    def verdict(self, offset: int) -> Void | None:
        """Return the verdict on the record at `offset`."""
        self.fold()
        return self._verdicts[offset]

    def lose_tail(self) -> None:
        """Lose the ledger's last record, if that is an Open (a lost commit would be detected as data loss)."""
        if self.ledger and isinstance(self.ledger[-1], Open):
            self.ledger.pop()
            self._fold, self._verdicts = self.make_fold(), []

    def deliver(self) -> None:
        """Deliver one message, or lose it, or deliver it and lose its answer."""
        if not self.network:
            return
        message = self._pick()
        sender, queue = message.sender, message.queue
        if (sender.dead and self.rng.random() < 0.5) or queue in sender.broken:
            return
        if self.rng.random() < 0.06 and not sender.dead:
            sender.broken.add(queue)  # this and all later ones are lost, so that order holds
            sender.dead = True
            return
        offset = self._append(queue, message.record)
        if self.rng.random() < 0.06:
            sender.dead = True
        elif not sender.dead:
            message.answer(offset)

    def _pick(self) -> _Message:
        chosen = self.rng.choice(self.network)
        message = next(m for m in self.network if m.sender is chosen.sender and m.queue == chosen.queue)
        self.network.remove(message)
        return message

    def _append(self, queue: int, record: LedgerRecord | Chunk) -> int:
        if isinstance(record, Chunk):
            self.data[queue].append(record)
            return len(self.data[queue]) - 1
        arrived = ledger.decode(ledger.encode(record))
        assert arrived is not None, "a ledger record lost its magic"
        assert arrived == record, "a ledger record changed in flight"
        self.ledger.append(arrived)
        return len(self.ledger) - 1


@dataclass(slots=True)
class _Pending:
    """A change set in flight: per partition the offsets acknowledged so far."""

    offsets: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    waiting: int = 0


class Process:
    """One incarnation of a writer: one Open, then persist and commit until something fails or fences it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.partitions = world.rng.choice(NAMES[name])
        self.dead = False
        self.broken: set[int] = set()
        world.lives += 1
        self.nonce = world.lives.to_bytes(16, "big")
        self.slow = world.rng.random() < 0.3
        self.eager = world.rng.choice((0.2, 0.6))  # how readily it persists on top of an uncommitted handle
        self.epoch, self.sqn, self.at = -1, 0, 0
        self.queue: list[Handle] = []  # persisted, not yet committed; each includes the one before
        self.state = "start"

    def step(self) -> None:
        """Do one step, if there is any."""
        rng = self.world.rng
        if self.state == "start" and not (self.slow and rng.random() < 0.7):
            self._send_open()
        elif self.state == "opened":
            self._begin()
        elif self.state == "idle" and (not self.queue or (len(self.queue) < 3 and rng.random() < self.eager)):
            self._persist()
        elif self.state == "idle":
            self._send_commit()

    def _send(self, queue: int, record: LedgerRecord | Chunk, answer: Callback) -> None:
        self.world.network.append(_Message(self, queue, record, answer))

    def _send_open(self) -> None:
        fold = self.world.fold()
        self.world.seen_end[self.nonce] = fold.position
        record = Open(
            writer=self.name,
            partitions=self.partitions,
            nonce=self.nonce,
            prior=fold.prior(self.name, self.partitions),
            last=fold.last_checkpoint(self.name),
            identity=IDENTITY,
        )
        self.state = "opening"
        self._send(LEDGER, record, self._opened)

    def _opened(self, offset: int) -> None:
        self.epoch, self.state = offset, "opened"

    def _begin(self) -> None:
        """Read the ledger up to the Open, and adopt a stored handle if there is one that continues the log."""
        fold = self.world.fold()
        if fold.live_epoch(self.epoch) is None:
            self.dead = True
            return
        last = fold.last_commit(self.name)
        self.tip = fold.last_checkpoint(self.name)
        self.at = int(last.metadata["to"]) if last else 0
        stored = self.world.stored.get(self.name)
        if stored is not None and self.world.rng.random() < 0.8:
            self._adopt(stored)
        self.state = "idle"

    def _adopt(self, stored: Handle) -> None:
        """Drop the committed part, or, as a careless caller does, take any handle with a greater id."""
        if self.world.rng.random() < 0.5:
            handle = stored
            if handle.checkpoint.id <= self.tip.id:
                return
        else:
            try:
                handle = stored.continuing(self.tip)
            except CheckpointMismatch:
                del self.world.stored[self.name]
                return
        self.queue, self.tip, self.at = [handle], handle.checkpoint, span_of(handle)[1]

    def _persist(self) -> None:
        rng = self.world.rng
        self.sqn += 1
        pending = _Pending()
        start, to = self.at, self.at + rng.randint(1, 3)
        quiet = rng.random() < 0.25  # input that changes no key still moves the source on
        self.state = "persisting"
        for value in range(start, start if quiet else to):
            partition = self.partitions[value % len(self.partitions)]
            pending.offsets.setdefault(partition, [])
            pending.waiting += 1
            acknowledged = partial(self._acknowledged, pending, partition, start, to)
            self._send(partition, Chunk(self.epoch, self.nonce, self.sqn, self.name, value), acknowledged)
        if quiet:
            self._persisted(pending, start, to)

    def _acknowledged(self, pending: _Pending, partition: int, start: int, to: int, offset: int) -> None:
        pending.offsets[partition].append(offset)
        pending.waiting -= 1
        if pending.waiting == 0:
            self._persisted(pending, start, to)
            if self.world.rng.random() < 0.5:
                self.world.stored[self.name] = self.queue[-1]

    def _persisted(self, pending: _Pending, start: int, to: int) -> None:
        step = Step(
            checkpoint_id=self.tip.id + 1,
            entries=tuple(
                Entry(partition, self.sqn, len(at), len(at), len(at), at[0], at[-1] + 1, 0, b"\1", gaps_of(at))
                for partition, at in sorted((partition, sorted(at)) for partition, at in pending.offsets.items())
            ),
            meta={SPAN: f"{start}-{to}".encode()},
        )
        if self.queue and self.queue[-1].nonce == self.nonce:
            handle = replace(self.queue[-1], steps=(*self.queue[-1].steps, step))
        else:
            handle = Handle(
                identity=IDENTITY, writer=self.name, epoch=self.epoch, nonce=self.nonce, base=self.tip, steps=(step,)
            )
        self.queue.append(Handle.from_bytes(handle.to_bytes()))
        self.tip, self.at, self.state = handle.checkpoint, to, "idle"

    def _send_commit(self) -> None:
        """Commit the oldest handle, or a later one that includes it."""
        rng = self.world.rng
        included = [i for i, handle in enumerate(self.queue) if handle.nonce == self.queue[0].nonce]
        chosen = included[-1] if rng.random() < 0.3 else 0
        handle = self.queue[chosen]
        start, to = span_of(handle)
        record = Commit.of(
            epoch=self.epoch,
            nonce=self.nonce,
            base=handle.base,
            checkpoint=handle.checkpoint,
            metadata={"from": str(start), "to": str(to)},
            handles=[handle],
            witness=ORIGIN,
            final=rng.random() < 0.04,
        )
        self.state = "committing"
        self._send(LEDGER, record, lambda offset: self._committed(offset, handle, chosen, final=record.final))

    def _committed(self, offset: int, handle: Handle, chosen: int, *, final: bool) -> None:
        if self.world.verdict(offset) is not None:
            self.dead = True
            self.world.stored.pop(self.name, None)
            return
        self.world.told.append(Told(self.name, handle.checkpoint, span_of(handle)[1]))
        rest = self.queue[chosen + 1 :]
        self.queue = [later.continuing(handle.checkpoint) for later in rest]
        self.dead, self.state = final, "idle"


def simulate(seed: int, make_fold: MakeFold) -> World:
    """Return one history."""
    world = World(seed, make_fold)
    rng = world.rng
    processes: list[Process] = []
    for _ in range(rng.randint(100, 500)):
        processes = [process for process in processes if not process.dead]
        x = rng.random()
        if not processes or (len(processes) < 3 and x < 0.15):
            processes.append(Process(world, rng.choice(list(NAMES))))
        elif x < 0.18:
            rng.choice(processes).dead = True
        elif x < 0.20:
            world.lose_tail()
        elif x < 0.6:
            rng.choice(processes).step()
        else:
            world.deliver()
    return world
