"""The loop around a worker: which messages are processed, how it ends, and who may touch it."""

import threading
from contextlib import nullcontext

import pytest

from statelog.errors import ClosedError, Fenced, UncommittedChanges
from tests.support.processes.group import step
from tests.support.told import told
from tests.support.worlds.workers import PARTITIONS, SteppedWorker, WorkersWorld

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def world() -> WorkersWorld:
    """One worker that has all partitions of an input with four messages each."""
    world = WorkersWorld()
    world.feed(4)
    worker = world.start()
    for partition in range(PARTITIONS):
        world.group.give(partition, world.workers[worker], waits=True)
    return world


def _worker(world: WorkersWorld) -> SteppedWorker:
    return next(iter(world.workers))


def _progress(world: WorkersWorld) -> list[int]:
    """How far each partition is, by tables that look at nothing but the log."""
    found: list[int] = []
    for partition in range(PARTITIONS):
        with world.open(partition) as table:  # Which checks that it is the fold.
            found.append(int(table.progress["offset"]))
    return found


def test_all_of_it(world: WorkersWorld) -> None:
    """Messages come in order by partition, each with its partition's table; the end of the block commits the rest."""
    seen: list[tuple[int, int]] = []
    with _worker(world) as worker:
        for message, table in worker:
            seen.append((message.partition(), int(message.value() or b"")))
            assert table is worker.tables[message.partition()]
            step(table, seen[-1][1])
        assert worker.commit() == {0: 4, 1: 4, 2: 4}
        world.feed(1)
        worker.go_on()
        for message, table in worker:
            step(table, int(message.value() or b""))
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(4)]
    assert _progress(world) == [5, 5, 5]


def test_an_error_commits_nothing(world: WorkersWorld) -> None:
    """Neither its message, nor what was processed since the last commit."""
    with pytest.raises(ZeroDivisionError), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            step(table, int(message.value() or b""))
            if turn == 3:
                worker.commit()
            if turn == 6:
                raise ZeroDivisionError
    assert _progress(world) == [2, 1, 1]


@pytest.mark.parametrize(
    ("touches", "counts", "progress"), [(True, True, [2, 2, 1]), (True, False, [2, 0, 1]), (False, False, [2, 1, 1])]
)
def test_a_loop_that_breaks_off(world: WorkersWorld, touches: bool, counts: bool, progress: list[int]) -> None:
    """Its message is processed if `commit_every` was called behind it. If not, its partition's uncommitted changes are
    dropped with it, loudly, unless it had changed nothing yet; the other partitions' are committed.
    """
    with pytest.warns(UncommittedChanges) if touches and not counts else nullcontext(), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            is_last = turn == 4  # The second one of partition 1.
            if touches or not is_last:
                step(table, int(message.value() or b""))
            if counts or not is_last:
                worker.commit_every(1e9)
            if is_last:
                break
    assert _progress(world) == progress


def test_somebody_outside_of_the_group(world: WorkersWorld) -> None:
    """Who opens a table of the group's again and again ends its worker with Fenced, and not in a duel for ever."""
    fences = 0
    with told("is opened again"), pytest.raises(Fenced), _worker(world) as worker:
        for message, table in worker:
            step(table, int(message.value() or b""))
            if message.partition() == 1 and fences < 50:
                fences += 1
                world.open(1).close()
                world.feed(1)
                worker.idle_s = 0.0
            worker.commit_every(0.0)
    assert 2 <= fences < 20


def test_one_thread(world: WorkersWorld) -> None:
    """Another thread may stop a worker, and do nothing else with it; after its end nobody may."""
    refused: list[ClosedError] = []

    def other() -> None:
        for call in (lambda: next(worker), lambda: worker.tables, worker.commit):
            try:
                call()
            except ClosedError as error:
                refused.append(error)
        worker.stop()

    with _worker(world) as worker:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert list(worker) == []
    assert len(refused) == 3
    with pytest.raises(ClosedError):
        next(worker)
    worker.close()
