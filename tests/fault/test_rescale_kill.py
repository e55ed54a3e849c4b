"""Rescaling and taking over with processes on a real broker: four workers, two, three, killed or just left running.

The job counts events, so that a lost event and one counted twice both show. What it was told is what the log holds.
Workers follow docs/key-groups.md, each on its share of the partitions. They stop when they have come to an end, when
they are told that somebody took over, or when they are killed.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from statelog.errors import Fenced
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import share
from statelog.schemas.ledger.state import LastCommit
from tests.sim.plays.rescale import KEY_GROUPS, PARTITIONS, count
from tests.support.processes.starts import quick_start
from tests.support.rigs.log import LogRig, real_rig
from tests.support.services.broker import Broker

_EVENTS_PER_COMMIT = 5
_CONTEXT = quick_start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the log is."""

    log: str
    bootstrap: str
    root: Path

    def rig(self) -> LogRig:
        """The log, for this process."""
        return real_rig(self.log, self.bootstrap, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended that was not killed: fenced or not, and the positions that it was told to be committed."""

    fenced: bool
    told: Mapping[int, int]


def furthest(commits: Mapping[str, LastCommit]) -> Counter[int]:
    """The position of every partition: the furthest that any writer committed."""
    found: Counter[int] = Counter()
    for commit in commits.values():
        found |= Counter({int(partition): int(position) for partition, position in commit.metadata.items()})
    return found


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, place: Place, worker: int, workers: int, end: int) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(place, worker, workers, end, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._pid = self._process.pid

    def began_at(self) -> dict[int, int]:
        """Its partitions and the positions where it begins, once it is open."""
        positions: dict[int, int] = self._pipe.recv()
        return positions

    def ending(self) -> Ending:
        """How it ended, once it has."""
        ending: Ending = self._pipe.recv()
        self._process.join()
        return ending

    def stop(self) -> None:
        """SIGSTOP: it stands still where it is."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.join()


def _work(place: Place, worker: int, workers: int, end: int, pipe: Connection) -> None:
    with place.rig().open() as log:
        partitions = share(log.descriptor.partitions, worker=worker, workers=workers)
        writer = Writer(log, f"job-{worker}", partitions=partitions)
        recovery = recover(log, key_groups=log.descriptor.key_groups_in(partitions))
        state: dict[bytes, bytes] = recovery.to_dict()
        positions = furthest(recovery.commits)
        told = {partition: positions[partition] for partition in partitions}
        pipe.send(told)
        try:
            while min(positions[partition] for partition in partitions) < end:
                _count_some(writer, state, positions)
                told = {partition: positions[partition] for partition in partitions}
        except Fenced:
            pipe.send(Ending(fenced=True, told=told))
        else:
            pipe.send(Ending(fenced=False, told=told))
        writer.close()


def _count_some(writer: Writer, state: dict[bytes, bytes], positions: Counter[int]) -> None:
    changed: set[bytes] = set()
    for partition in writer.grant.partitions:
        stop = positions[partition] + _EVENTS_PER_COMMIT
        changed |= count(state, partition, positions[partition], stop)
        positions[partition] = stop
    for key in changed:
        writer.put(key, state[key]) if key in state else writer.delete(key)
    last = writer.last_commit
    metadata = {str(partition): str(position) for partition, position in positions.items()}
    writer.commit(metadata, checkpoint_id=last.checkpoint.id + 1 if last else 1)


def restore(place: Place, key_groups: Sequence[range], position: int) -> list[dict[bytes, bytes]]:
    """The state at a ledger position, each part restored by a process of its own."""
    readers = [_CONTEXT.Pipe(duplex=False) for _ in key_groups]
    for part, (_, theirs) in zip(key_groups, readers, strict=True):
        _CONTEXT.Process(target=_read, args=(place, part, position, theirs), daemon=True).start()
        theirs.close()
    return [ours.recv() for ours, _ in readers]


def _read(place: Place, key_groups: range, position: int, pipe: Connection) -> None:
    with place.rig().open() as log:
        pipe.send(recover(log, key_groups=key_groups, at=AtPosition(position)).to_dict())


ENDLESS = 1 << 40
pytestmark = pytest.mark.broker


@pytest.fixture
def place(broker: Broker, log_name: str, tmp_path: Path) -> Place:
    """A log of the counts that the world of the property tests has."""
    made = Place(log=log_name, bootstrap=broker.bootstrap, root=tmp_path)
    made.rig().create(partitions=PARTITIONS, key_groups=KEY_GROUPS).close()
    return made


@pytest.fixture
def log(place: Place) -> Iterator[Log]:
    """The log, for who looks on."""
    with place.rig().open() as opened:
        yield opened


def start(place: Place, workers: int, end: int = ENDLESS) -> list[WorkerProcess]:
    """A fleet, on its way."""
    return [WorkerProcess(place, worker, workers, end) for worker in range(workers)]


def wait_for(log: Log, position: int) -> Counter[int]:
    """Look until every partition has come so far; returns how far each has."""
    found = furthest(log.commits())
    while min(found[partition] for partition in range(PARTITIONS)) < position:
        found = furthest(log.commits())
    return found


def check(place: Place, log: Log) -> Counter[int]:
    """Two readers, with half of the key groups each, restore what the committed events add up to."""
    described = log.describe().state
    positions = furthest(described.commits)
    halves = restore(place, [share(KEY_GROUPS, worker=half, workers=2) for half in range(2)], described.position)
    expected: dict[bytes, bytes] = {}
    for partition, end in positions.items():
        count(expected, partition, 0, end)
    assert not halves[0].keys() & halves[1].keys()
    assert halves[0] | halves[1] == expected
    return positions


def test_four_workers_then_two_then_three(place: Place, log: Log) -> None:
    """Whether the workers before were killed or still run, those after begin where they ended, and nothing is lost."""
    four = start(place, 4)
    for worker in four:
        worker.began_at()
    before = wait_for(log, 20)
    four[0].kill()
    four[2].kill()

    two = start(place, 2)
    began = Counter({partition: at for worker in two for partition, at in worker.began_at().items()})
    assert began >= before
    for left_behind in (four[1], four[3]):
        ending = left_behind.ending()
        assert ending.fenced
        assert all(began[partition] == told for partition, told in ending.told.items())
    wait_for(log, max(began.values()) + 20)
    for worker in two:
        worker.kill()
    before = check(place, log)

    end = max(before.values()) + 20
    three = start(place, 3, end)
    began = Counter({partition: at for worker in three for partition, at in worker.began_at().items()})
    assert began == before
    assert not any(worker.ending().fenced for worker in three)
    assert min(check(place, log).values()) >= end


def test_takeover_under_load(place: Place, log: Log) -> None:
    """Two writers open on the partitions of one that never stops committing: it is told, and what they see is final."""
    (old,) = start(place, 1)
    old.began_at()
    wait_for(log, 20)

    new = start(place, 2)
    began = {partition: at for worker in new for partition, at in worker.began_at().items()}
    ending = old.ending()

    assert ending.fenced
    assert ending.told == began
    wait_for(log, max(began.values()) + 20)
    for worker in new:
        worker.kill()
    check(place, log)


def test_a_writer_that_slept_through_the_takeover(place: Place, log: Log) -> None:
    """A writer that is stopped at its work, and runs on after another has committed, is told; what it wrote is void."""
    (old,) = start(place, 1)
    old.began_at()
    wait_for(log, 20)
    old.stop()
    try:
        (new,) = start(place, 1)
        began = new.began_at()
        wait_for(log, max(began.values()) + 20)
    finally:
        old.resume()
    ending = old.ending()

    assert ending.fenced
    assert ending.told == began
    new.kill()
    check(place, log)
