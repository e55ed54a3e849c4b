"""Tables of a worker that open concurrently in threads: order, errors, revoked partitions, and Ctrl-C."""

import concurrent.futures
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from statelog.environment import start_thread
from statelog.errors import Damaged
from statelog.producer.guard import Life
from statelog.tables import Table
from statelog.tables.group import assignment
from statelog.tables.group.context import WorkerHooks
from statelog.testing.faults import TRUE, Answer, Call, old
from tests.sim.plays.workers import PARTITIONS, SteppedWorker, WorkersWorld
from tests.sim.source import WORK

pytestmark = pytest.mark.usefixtures("impatient")

_LIMIT_S = 60.0


class _Doors:
    """Entry points to the tables of a world that a test can hold up."""

    def __init__(self, world: WorkersWorld, gates: dict[int, Callable[[], None]]) -> None:
        self._world = world
        self._gates = gates
        self.tables: dict[int, Table[Any, Any]] = {}
        self.over = threading.Semaphore(0)
        """Counts the tables that are open, or failed."""

    def open(self, partition: int, is_beside: bool) -> Table[Any, Any]:
        """Open a table once its gate opens."""
        assert not is_beside
        try:
            self._gates.get(partition, lambda: None)()
            self.tables[partition] = self._world.open(partition)
        finally:
            self.over.release()
        return self.tables[partition]


def _start(
    world: WorkersWorld, gates: dict[int, Callable[[], None]], **environment: Any
) -> tuple[SteppedWorker, _Doors]:
    """Return a worker that has all partitions, and opens them in threads."""
    doors = _Doors(world, gates)
    world.open_for, world.start_opening = doors.open, start_thread  # type: ignore[method-assign]  # held up
    world.feed(2)
    worker = world.start(**environment)
    for partition in range(PARTITIONS):
        world.group.give(partition, world.workers[worker], waits=True)
    return worker, doors


def _open_all(worker: SteppedWorker, partitions: list[int]) -> None:
    """Let the loop run until these have tables, and no others."""
    end_s = time.monotonic() + _LIMIT_S
    while list(worker.tables) != partitions:
        assert time.monotonic() < end_s
        worker.go_on()
        list(worker)


def _wait(event: threading.Event) -> Callable[[], None]:
    def gate() -> None:
        assert event.wait(_LIMIT_S)

    return gate


def test_several_open_at_once() -> None:
    """The first table opens last, but its hook is called first. Hooks and tables belong to the worker's thread."""
    notes: list[tuple[int, int]] = []
    world = WorkersWorld()

    def after_the_others() -> None:
        for _ in range(PARTITIONS - 1):
            assert doors.over.acquire(timeout=_LIMIT_S)

    hooks = WorkerHooks(on_open=lambda partition, _: notes.append((partition, threading.get_ident())))
    worker, doors = _start(world, {0: after_the_others}, hooks=hooks)
    with worker:
        _open_all(worker, [0, 1, 2])
        assert notes == [(partition, threading.get_ident()) for partition in range(PARTITIONS)]
        assert all(doors.tables[one] is worker.tables[one] for one in range(PARTITIONS))
        assert worker.commit() == {0: 2, 1: 2, 2: 2}


def test_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two openings at most, the third waits for the first of them."""
    monkeypatch.setattr(assignment, "_AT_ONCE", 2)
    world, pair = WorkersWorld(), threading.Barrier(2)

    def two() -> None:
        pair.wait(_LIMIT_S)

    def alone() -> None:
        assert 0 in worker.__dict__["_assignment"].held

    worker, _ = _start(world, {0: two, 1: two, 2: alone})
    with worker:
        _open_all(worker, [0, 1, 2])


def test_an_error_of_one() -> None:
    """An error of an opening is raised in its turn. Tables that are open, or open later, are closed."""
    world, begun, closing = WorkersWorld(), threading.Event(), threading.Event()

    def damaged() -> None:
        _wait(begun)()
        raise Damaged("mine")

    def late() -> None:
        begun.set()
        _wait(closing)()

    hooks = WorkerHooks(on_close=lambda _, __: closing.set())
    worker, doors = _start(world, {1: damaged, 2: late}, hooks=hooks)
    with pytest.raises(Damaged, match="mine"), worker:
        _open_all(worker, [0, 1, 2])
    assert {one: table.life for one, table in doors.tables.items()} == {0: Life.CLOSED, 2: Life.CLOSED}


def test_a_partition_that_goes_while_it_opens() -> None:
    """A partition that is revoked while it opens is given up once its table is closed, and was never usable."""
    world, begun, revoked = WorkersWorld(), threading.Event(), threading.Event()
    lives: list[Life] = []

    def slow() -> None:
        begun.set()
        _wait(revoked)()

    def note(point: str) -> None:
        if point == "revoked":
            revoked.set()
        if point == "given-up":
            lives.append(doors.tables[1].life)

    def take(partition: int, _: Table[Any, Any]) -> None:
        assert partition != 1
        world.group.give(1, None, waits=True)

    worker, doors = _start(world, {0: _wait(begun), 1: slow}, hooks=WorkerHooks(on_open=take), crash=note)
    with worker:
        _open_all(worker, [0, 2])
        assert lives == [Life.CLOSED]
        world.open(1).close()


def test_an_interrupt_while_openings_are_waited_for() -> None:
    """Ctrl-C ends the wait for openings. A table that opens later is closed by its opening thread."""
    world, begun, broken, threads = WorkersWorld(), threading.Event(), threading.Event(), list[threading.Thread]()

    def interrupt() -> None:
        begun.set()
        while not _waits(concurrent.futures.wait.__code__):
            time.sleep(0.001)
        end_s = time.monotonic() + _LIMIT_S
        while not broken.is_set():  # Again: Python sleeps on if a signal comes just before a lock is waited for.
            assert time.monotonic() < end_s
            if _waits(concurrent.futures.wait.__code__):
                os.kill(os.getpid(), signal.SIGINT)
            broken.wait(5)

    def stop(*_: object) -> None:
        raise ZeroDivisionError

    worker, doors = _start(world, {0: _wait(begun), 1: interrupt}, hooks=WorkerHooks(on_open=stop))
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), worker:
        try:
            _open_all(worker, [0, 1, 2])
        finally:
            threads += set(threading.enumerate()) - before
    broken.set()
    for thread in threads:
        while thread.ident is None:  # Another thread was about to start it.
            time.sleep(0.001)
        thread.join(_LIMIT_S)
    lives = {one: table.life for one, table in doors.tables.items()}
    assert {0, 1} <= set(lives)  # The third has not begun if the first was open before its turn came.
    assert set(lives.values()) == {Life.CLOSED}


def _waits(code: object) -> bool:
    """Return whether the main thread is inside of this function."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]  # pyright: ignore[reportPrivateUsage]  # the one way
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return frame is not None


def test_an_old_end_of_the_input() -> None:
    """The input's end from a deposed leader is asked for again, since the table's progress is above it."""
    world = WorkersWorld()
    world.feed(4)
    for lacks in (0, 3):
        left = lacks

        def answer(call: Call) -> Answer:
            nonlocal left
            is_old = left > 0 and (call.method, call.topic) == ("offsets", "input")
            left -= is_old
            return old(PARTITIONS * 3) if is_old else TRUE

        world.source.cluster.questions = answer
        with world.start() as worker:
            world.group.give(0, world.workers[worker], waits=True)
            for message, table in worker:
                WORK.step(table, message.offset() or 0)
            assert worker.commit() == {0: 4}
        assert left == 0
