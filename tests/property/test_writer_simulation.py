"""Random runs of writers over an in-memory broker that loses, delays, refuses and half-answers.

A writer copies a source, whose position travels in the commit metadata, into the log. With any fate of its records,
answers and itself, the log ends with exactly the plain fold of the source. Acknowledged commits stay. Every failure
prints the seed that replays it.
"""

import random
import warnings
from collections.abc import Callable

import pytest

from statelog.environment import Environment, inline
from statelog.errors import (
    CheckpointMismatch,
    ClosedError,
    CommitRefused,
    Fenced,
    OutcomeUnknown,
    PersistFailed,
    Unavailable,
)
from statelog.pending import Pending
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.handle import Handle
from statelog.testing.faults import Fate, SendAttempt
from tests.support.rigs.log import LogRig, twin_rig
from tests.support.samples.folds import apply_all

EXPECTED = (CheckpointMismatch, ClosedError, CommitRefused, Fenced, OutcomeUnknown, PersistFailed, Unavailable)
BAD_FATES = [
    Fate.DELAY,
    Fate.LOSE,
    Fate.SKIP,
    Fate.APPEND_UNANSWERED,
    Fate.ACK_WITHOUT_OFFSET,
]
SMALL = WriterSettings(
    in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=3, list_bytes=64, roll_bytes=128, chunk_bytes=64)
)


class RandomFaults:
    """Faults that give a small share of all records a random fate."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self.rng = rng
        self.share = share

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the fate of one record."""
        return self.rng.choice(BAD_FATES) if self.rng.random() < self.share else Fate.DELIVER


class Died(Exception):
    """The process was killed here; no part of it runs any more."""


class Source:
    """The source of one writer: an endless, repeatable list of changes over few keys of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def change(self, position: int) -> tuple[bytes, bytes | None]:
        """Return the change at a position; every seventh deletes."""
        rng = random.Random(f"{self.name}/{position}")
        key = f"{self.name}-{rng.randrange(12)}".encode()
        return key, None if rng.random() < 0.15 else b"%d" % position

    def fold(self, end: int) -> dict[bytes, bytes]:
        """Return the state after the changes below `end`."""
        state: dict[bytes, bytes] = {}
        apply_all(state, map(self.change, range(end)))
        return state


def crasher(rng: random.Random) -> Callable[[str], None]:
    """Return a function that dies at a random crash point, rarely."""

    def crash(point: str) -> None:
        if rng.random() < 0.03:
            raise Died(point)

    return crash


class Life:
    """One incarnation of a writer: it resumes, copies a while, and ends in one of many ways."""

    def __init__(self, rig: LogRig, source: Source, rng: random.Random, stored: dict[str, bytes]) -> None:
        self.rng, self.source, self.stored = rng, source, stored
        self.told = 0
        self.under_way: list[tuple[Pending[Handle], int]] = []
        self.now_s = 0.0
        log = Environment(clock=self.clock).run(rig.open)
        self.writer = Environment(clock=self.clock, crash=crasher(rng)).run(Writer, log, source.name, settings=SMALL)
        last = self.writer.last_commit
        self.next_id = last.checkpoint.id + 1 if last else 1
        self.position = int(last.metadata["position"]) if last else 0
        self.adopt()

    def clock(self) -> float:
        """Return the time, which advances at every call, so that waiting ends."""
        self.now_s += 1.0
        return self.now_s

    def adopt(self) -> None:
        """Commit the handle that an earlier incarnation left, if it still continues the log."""
        data = self.stored.pop(self.source.name, None)
        if data is None or self.rng.random() < 0.3:
            return
        handle = Handle.from_bytes(data[8:])
        end = int.from_bytes(data[:8], "little")
        try:
            self.writer.adopt(handle, {"position": str(end)})
        except CheckpointMismatch:
            return
        self.position, self.next_id, self.told = end, handle.checkpoint.id + 1, end

    def step(self) -> None:
        """Copy some changes, or none, and start a checkpoint of them; sometimes leave it in flight next to another."""
        end = self.position + self.rng.choice((0, 1, 5, 20))
        for position in range(self.position, end):
            key, value = self.source.change(position)
            if value is None:
                self.writer.delete(key)
            else:
                self.writer.put(key, value)
            if self.rng.random() < 0.1:
                self.writer.next_sequence_number()
        self.under_way.append((self.writer.persist(self.next_id), end))
        self.position, self.next_id = end, self.next_id + 1
        if self.rng.random() < 0.7:
            self.finish()

    def finish(self) -> None:
        """Commit the checkpoints in flight, perhaps after leaving a handle for a successor; skip or abort some."""
        under_way, self.under_way = self.under_way, []
        for persist, end in under_way:
            handle = persist.result()
            if self.rng.random() < 0.3:
                self.stored[self.source.name] = end.to_bytes(8, "little") + handle.to_bytes()
            if self.rng.random() < 0.15:
                self.writer.reset(handle.checkpoint.id)
                continue  # The next handle includes it.
            self.writer.confirm(handle, {"position": str(end)})
            self.told = end
        if self.rng.random() < 0.1:
            self.writer.truncate(self.writer.next_sequence_number())


def check(rig: LogRig, sources: list[Source], told: dict[str, int]) -> dict[str, int]:
    """Check that the log equals a plain fold of each source up to the position that its last commit names."""
    state = rig.state()
    with rig.open() as log:
        commits = log.history.read().state.commits
    ends: dict[str, int] = {}
    expected: dict[bytes, bytes] = {}
    for source in sources:
        last = commits.get(source.name)
        ends[source.name] = int(last.metadata["position"]) if last else 0
        expected |= source.fold(ends[source.name])
    assert state == expected
    for name, position in told.items():
        assert ends[name] >= position, f"{position} was acknowledged to {name}, the log is at {ends[name]}"
    return ends


def check_recovery(rig: LogRig, sources: list[Source], told: dict[str, int]) -> None:
    """Check in the middle of all that a new recovery has every acknowledged commit, and reports no damage."""
    with rig.open() as log:
        recovery = Environment(start=inline).run(recover, log)
        state = recovery.to_dict()
    ends = {source.name: 0 for source in sources}
    ends |= {name: int(last.metadata["position"]) for name, last in recovery.commits.items()}
    assert all(ends[name] >= position for name, position in told.items()), f"acknowledged {told}, recovered {ends}"
    expected: dict[bytes, bytes] = {}
    for source in sources:
        expected |= source.fold(ends[source.name])
    assert state == expected


def run(seed: int) -> int:
    """Run one history; return how far the sources were copied."""
    rng = random.Random(seed)
    share = rng.choice((0.0, 0.01, 0.04))
    faults = RandomFaults(rng, share=0.0)
    rig = twin_rig("sim", faults)
    rig.create(partitions=3, key_groups=6).close()
    faults.share = share
    sources = [Source("a"), Source("b")]
    lives: dict[str, Life] = {}
    stored: dict[str, bytes] = {}
    told = {source.name: 0 for source in sources}
    for _ in range(rng.randint(20, 60)):
        source = rng.choice(sources)
        fresh = source.name not in lives or rng.random() < 0.08
        try:
            if fresh:
                lives[source.name] = Life(rig, source, rng, stored)
            else:
                lives[source.name].step()
        except Died:
            lives.pop(source.name, None)
        except EXPECTED:
            life = lives.pop(source.name, None)
            if life is not None:
                life.writer.close()
        else:
            told[source.name] = max(told[source.name], lives[source.name].told)
        if seed % 3 == 0 and rng.random() < 0.1:
            check_recovery(rig, sources, told)
        if rng.random() < 0.3:
            rig.cluster.release(rng.randrange(3))
        if rng.random() < 0.1:
            rig.cluster.expire()
    check(rig, sources, told)
    rig.cluster.release()
    ends = check(rig, sources, told)
    return sum(ends.values())


def test_histories_end_in_the_fold_of_their_sources() -> None:
    """Over many seeds, with two writers of one log fencing each other, nothing is lost, doubled or torn.

    `make soak` takes two hundred times as many.
    """
    copied = 0
    for seed in range(40):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                copied += run(seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    assert copied > 2_500, copied


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_more_histories() -> None:
    """Nothing is lost over far more seeds."""
    for seed in range(1_000, 9_000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                run(seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
