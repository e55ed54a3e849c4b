"""Rescaling and taking over with processes on a real broker: four workers, two, three, killed or just left running.

The job counts events, so that a lost event and one counted twice both show. Its acknowledged commits are the log's.
Workers follow docs/key-groups.md, each on its share of the partitions. They stop at the end, when they learn that
another took over, or when they are killed.
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
    """The place of the log."""

    log: str
    bootstrap: str
    root: Path

    def rig(self) -> LogRig:
        """Return the log, for this process."""
        return real_rig(self.log, self.bootstrap, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a worker that was not killed: fenced or not, and its acknowledged positions."""

    fenced: bool
    told: Mapping[int, int]


def furthest(commits: Mapping[str, LastCommit]) -> Counter[int]:
    """Return the position of every partition: the furthest that any writer committed."""
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
        """Return its partitions and the positions where it begins, once it is open."""
        positions: dict[int, int] = self._pipe.recv()
        return positions

    def ending(self) -> Ending:
        """Return how it ended, once it has."""
        ending: Ending = self._pipe.recv()
        self._process.join()
        return ending

    def stop(self) -> None:
        """Send SIGSTOP."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL; return when it is dead."""
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
    """Return the state at a ledger position, each part restored by a process of its own."""
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
    """Return a log of the counts that the world of the property tests has."""
    made = Place(log=log_name, bootstrap=broker.bootstrap, root=tmp_path)
    made.rig().create(partitions=PARTITIONS, key_groups=KEY_GROUPS).close()
    return made


@pytest.fixture
def log(place: Place) -> Iterator[Log]:
    """Yield the log, for an observer."""
    with place.rig().open() as opened:
        yield opened


def start(place: Place, workers: int, end: int = ENDLESS) -> list[WorkerProcess]:
    """Start a fleet of workers; return it."""
    return [WorkerProcess(place, worker, workers, end) for worker in range(workers)]


def wait_for(log: Log, position: int) -> Counter[int]:
    """Wait until every partition has reached the position; return the progress of each."""
    found = furthest(log.commits())
    while min(found[partition] for partition in range(PARTITIONS)) < position:
        found = furthest(log.commits())
    return found


def check(place: Place, log: Log) -> Counter[int]:
    """Check that two readers, with half of the key groups each, restore the sum of the committed events."""
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
    """Workers begin where earlier ones, killed or still running, ended, and nothing is lost."""
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
    """Two writers take over from one that never stops committing: it learns so, and their view is final."""
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
    """A writer that is paused through the takeover and a later commit learns so; its own writes are void."""
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
