"""WorkerHooks of a worker: when each is called, which of their changes count, and the effect of their errors."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, cast

import pytest

import statelog
from statelog.errors import BrokerUnavailable, ConfigError, Misuse, UncommittedChanges
from statelog.producer.guard import Life
from statelog.tables import Table
from statelog.tables.group.context import WorkerHooks
from tests.sim.plays.workers import SteppedWorker, WorkersWorld
from tests.support.faults.signals import at_line, handled
from tests.support.told import lines, told

pytestmark = pytest.mark.usefixtures("impatient")

Notes = list[tuple[str, int, int]]
PARTITION = 1


def _start(world: WorkersWorld, hooks: WorkerHooks, messages: int = 2) -> SteppedWorker:
    """Return a worker that has one partition with some messages."""
    world.feed(messages)
    worker = world.start(hooks=hooks)
    world.group.give(PARTITION, world.workers[worker], waits=True)
    return worker


def _noting(notes: Notes, tick_s: float = 1.0) -> WorkerHooks:
    """Return WorkerHooks that note their calls, and the committed progress of the table."""

    def noting(what: str) -> Callable[[int, Table[Any, Any]], None]:
        return lambda partition, table: notes.append((what, partition, int(table.progress["offset"])))

    return WorkerHooks(
        on_open=noting("open"), on_tick=noting("tick"), on_commit=noting("commit"), on_close=noting("close"),
        tick_s=tick_s,
    )  # fmt: skip


def _found(world: WorkersWorld) -> tuple[dict[bytes, bytes], int]:
    """Return the state and the progress of the partition in the log."""
    with statelog.table("log", world.rig.where(), key_group=PARTITION, writer=f"log-{PARTITION}") as table:
        return dict(table.items()), int(table.progress["offset"])


def test_the_order_of_hooks() -> None:
    """The order of hooks is: open before the first message, ticks, a commit once it is history, and close."""
    world, notes = WorkersWorld(), Notes()
    worker = _start(world, _noting(notes, tick_s=4.0))
    with worker:
        for message, _ in worker:
            notes.append(("message", message.partition() or 0, message.offset() or 0))
            worker.commit_every(1e9)
        worker.commit()
        notes.append(("end", 0, 0))
    p = PARTITION
    began = [("open", p, 0), ("message", p, 0), ("message", p, 1), ("tick", p, 0)]
    assert notes == [*began, ("commit", p, 2), ("end", 0, 0), ("close", p, 2)]


def test_ticks_come_though_there_are_messages() -> None:
    """Ticks come as often as configured, even while messages arrive."""
    world, notes = WorkersWorld(), Notes()
    with _start(world, _noting(notes, tick_s=0.5), messages=40) as worker:
        for _ in worker:
            world.now_s += 0.25
            if len([what for what, *_ in notes if what == "tick"]) == 8:
                break
        assert 4.0 <= world.now_s < 8.0


def test_what_hooks_change_is_committed() -> None:
    """Changes by hooks are committed with the next commit, also without messages.

    At the end there is one more for `on_commit`.
    """
    world = WorkersWorld()

    def add(name: bytes) -> Callable[[int, Table[Any, Any]], None]:
        def adding(_: int, table: Table[Any, Any]) -> None:
            if name not in table:
                table[name] = b"1"

        return adding

    hooks = WorkerHooks(on_open=add(b"open"), on_tick=add(b"tick"), on_commit=add(b"commit"))
    with _start(world, hooks, messages=0) as worker:
        worker.commit_every(1e9)
        assert list(worker) == []
    assert _found(world) == ({b"open": b"1", b"tick": b"1", b"commit": b"1"}, 0)


def test_a_tick_that_is_due_is_committed_in_time() -> None:
    """Changes of a tick are committed by `commit_every`, while no message comes."""
    world, commits = WorkersWorld(), list[tuple[float, bool]]()
    hooks = WorkerHooks(
        on_tick=lambda _, table: table.put(b"tick", b"1"),
        on_commit=lambda _, table: commits.append((world.now_s, b"tick" in table)),
    )
    with _start(world, hooks, messages=1) as worker:
        for _ in worker:
            worker.commit_every(2.0)
    assert any(has_tick and at_s < 4.0 for at_s, has_tick in commits)


def test_a_change_while_it_closes_is_lost_loudly() -> None:
    """A change in `on_close` is discarded with a warning, since the table takes no more commits."""
    world = WorkersWorld()
    hooks = WorkerHooks(on_close=lambda _, table: table.put(b"close", b"1"))
    with pytest.warns(UncommittedChanges), _start(world, hooks) as worker:
        list(worker)
    assert _found(world) == ({}, 2)


@pytest.mark.parametrize("gone", ["revoked", "lost"])
def test_a_partition_that_the_group_takes(gone: str) -> None:
    """A partition that the group takes is closed for its hooks once, behind its last commit if there is one."""
    world, notes = WorkersWorld(), Notes()
    with _start(world, _noting(notes, tick_s=1e9)) as worker:
        list(worker)
        world.group.give(PARTITION, None, waits=gone == "revoked")
        worker.go_on()
        with told("lost to the group") if gone == "lost" else nullcontext():
            list(worker)
        end = [("commit", PARTITION, 2), ("close", PARTITION, 2)] if gone == "revoked" else [("close", PARTITION, 0)]
        assert notes == [("open", PARTITION, 0), *end]


@pytest.mark.parametrize("failing", ["on_open", "on_tick", "on_commit"])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), BrokerUnavailable("mine")])
def test_an_error_of_a_hook_comes_out(failing: str, error: Exception) -> None:
    """An error of a hook passes through, and does not reopen the table.

    Nothing more is committed, and `on_close` is called.
    """
    world, notes = WorkersWorld(), Notes()

    def note(partition: int, _: Table[Any, Any]) -> None:
        notes.append(("close", partition, 0))

    def fail(_: int, table: Table[Any, Any]) -> None:
        table[b"half"] = b"done"
        raise error

    hooks: dict[str, Any] = {"on_close": note, failing: fail}
    worker = _start(world, WorkerHooks(**hooks))
    with pytest.raises(type(error), match="mine"), worker:
        for _ in worker:
            worker.commit_every(0.0)
    assert worker.life is Life.CLOSED
    assert b"half" not in _found(world)[0]
    assert len(notes) == (failing != "on_open")


def test_an_error_while_it_closes_leaves_nothing_open() -> None:
    """An error of `on_close` is raised once all tables are closed, after their commits."""
    world = WorkersWorld()

    def fail(_: int, __: Table[Any, Any]) -> None:
        raise ZeroDivisionError

    tables: list[Table[Any, Any]] = []
    worker = _start(world, WorkerHooks(on_open=lambda _, table: tables.append(table), on_close=fail))
    with pytest.raises(ZeroDivisionError), worker:
        list(worker)
    assert [table.life for table in tables] == [Life.CLOSED]
    assert worker.life is Life.CLOSED
    assert _found(world) == ({}, 2)


@pytest.mark.parametrize("hook", ["on_open", "on_tick", "on_commit"])
@pytest.mark.parametrize("call", ["commit", "__next__", "close", "table.commit"])
def test_a_hook_does_not_commit(hook: str, call: str) -> None:
    """A hook must not call the worker or commit its table. It may read the tables, and stop the loop."""
    world = WorkersWorld()

    def calls(_: int, table: Table[Any, Any]) -> None:
        assert worker.tables is not None
        worker.stop()
        table.commit() if call == "table.commit" else getattr(worker, call)()

    hooks: dict[str, Any] = {hook: calls}
    worker = _start(world, WorkerHooks(**hooks))
    with pytest.raises(Misuse), worker:
        for _ in worker:
            worker.commit_every(0.0)
    assert worker.life is Life.CLOSED


def test_ticks_without_time() -> None:
    """An interval of no time is refused for ticks."""
    with pytest.raises(ConfigError, match="tick_s is 0"):
        WorkerHooks(tick_s=0)


# Python ignores exceptions of a handler inside of a finalizer, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("gone", ["revoked", "lost"])
def test_ctrl_c_while_partitions_are_given_up(gone: str) -> None:
    """After Ctrl-C while partitions are given up, all tables are closed, each opened one with its `on_close`."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    at, came = 1, True
    while came:
        notes: Notes = []
        hooks = _noting(notes)
        world = WorkersWorld()
        worker = _start(world, hooks)
        world.group.give(PARTITION + 1, world.workers[worker], waits=True)
        while len(worker.tables) < 2:
            worker.go_on()
            list(worker)
        tables = list(worker.tables.values())
        give_up = partial(getattr(cast("Any", worker)._assignment, gone), [PARTITION, PARTITION + 1])
        came = False
        with lines(), handled(interrupt), suppress(KeyboardInterrupt), cast("Any", worker)._guard:
            came = at_line(at, give_up)
        came = came or worker.life is Life.FAILED
        worker.close()
        assert [table.life for table in tables] == [Life.CLOSED] * 2
        closed = [what for what, *_ in notes].count("close")
        assert closed == 2 or (came and closed == 1)  # It may have interrupted a hook.
        at += 11 if gone == "lost" else 97
    assert at > 300
