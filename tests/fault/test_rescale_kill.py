"""Rescaling and taking over with processes on a real broker: four workers, two, three, killed or just left running.

The job counts events, so that a lost event and one counted twice both show. What it was told is what the log holds.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from statelog.schemas.key_groups import share
from statelog.storage.log.log import Log
from tests.sim.plays.rescale import KEY_GROUPS, PARTITIONS, count
from tests.support.processes.fleet import Place, WorkerProcess, furthest, restore
from tests.support.services.broker import Broker

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
