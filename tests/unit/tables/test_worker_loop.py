"""The loop around a worker: processed messages, its end, and the threads that may use it."""

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

import statelog
from statelog.errors import (
    BrokerUnavailable,
    ClosedError,
    ConfigError,
    Fenced,
    IdentityChanged,
    Misuse,
    UncommittedChanges,
)
from statelog.kafka.port import TopicSpec
from statelog.operate.metrics import samples_of
from statelog.producer.guard import Life
from statelog.tables import Standby, Table
from statelog.tables.group import assignment
from statelog.tables.group.context import InputStart
from statelog.tables.standbys.standby import StandbyPool
from statelog.testing.kafka import MemoryKafka
from tests.sim.plays.workers import PARTITIONS, SteppedWorker, WorkersWorld
from tests.sim.source import WORK
from tests.support.faults.signals import at_line, handled
from tests.support.told import told
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def world() -> WorkersWorld:
    """Return one worker that has all partitions of an input with four messages each."""
    world = WorkersWorld()
    world.feed(4)
    worker = world.start()
    for partition in range(PARTITIONS):
        world.group.give(partition, world.workers[worker], waits=True)
    return world


def _worker(world: WorkersWorld) -> SteppedWorker:
    return next(iter(world.workers))


def _progress(world: WorkersWorld) -> list[int]:
    """Return the progress of each partition, by tables that read only the log."""
    found: list[int] = []
    for partition in range(PARTITIONS):
        with world.open(partition) as table:  # It checks that the state is the fold.
            found.append(int(table.progress.get("offset", 0)))
    return found


def test_all_of_it(world: WorkersWorld) -> None:
    """Messages come in order by partition, each with its partition's table. The end of the block commits the rest."""
    seen: list[tuple[int, int]] = []
    with _worker(world) as worker:
        for message, table in worker:
            seen.append((message.partition(), int(message.value() or b"")))
            assert table is worker.tables[message.partition()]
            WORK.step(table, seen[-1][1])
        assert worker.commit() == {0: 4, 1: 4, 2: 4}
        world.feed(1)
        worker.go_on()
        for message, table in worker:
            WORK.step(table, int(message.value() or b""))
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(4)]
    assert _progress(world) == [5, 5, 5]


def test_what_it_says_of_its_partitions(world: WorkersWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics have lag and commit age of each assigned partition, even before its table is open."""
    monkeypatch.setattr(assignment, "_PUBLISH_S", 0.0)
    with _worker(world) as worker:
        assert {(one.lag, one.commit_age_s) for one in worker.statistics()} <= {(None, None)}
        for _ in range(7):
            message, table = next(worker)
            WORK.step(table, int(message.value() or b""))
        assert worker.commit() == {0: 3, 1: 2, 2: 2}
        found = worker.statistics()
        samples = {one.metric: one.labels for one in samples_of(worker, "words", "")}
    assert [(one.partition, one.lag) for one in found] == [(0, 1), (1, 2), (2, 2)]
    assert all(one.commit_age_s is not None and 0 <= one.commit_age_s < 60 for one in found)
    assert samples["statelog_worker_partitions"] == samples["statelog_worker_tables"] == ("words",)
    assert samples["statelog_worker_lag_records"] == samples["statelog_worker_commit_age_seconds"] == ("words", "2")


def test_an_error_commits_nothing(world: WorkersWorld) -> None:
    """After an error, neither its message nor anything since the last commit is committed."""
    with pytest.raises(ZeroDivisionError), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            WORK.step(table, int(message.value() or b""))
            if turn == 3:
                worker.commit()
            if turn == 6:
                raise ZeroDivisionError
    assert _progress(world) == [2, 1, 1]


@pytest.mark.parametrize(
    ("touches", "counts", "progress"), [(True, True, [2, 2, 1]), (True, False, [2, 0, 1]), (False, False, [2, 1, 1])]
)
def test_a_loop_that_breaks_off(world: WorkersWorld, touches: bool, counts: bool, progress: list[int]) -> None:
    """The message at a break counts if `commit_every` was called behind it. Other partitions are committed.

    If it was not, the partition's uncommitted changes are dropped with a warning, unless that message had changed
    nothing.
    """
    with pytest.warns(UncommittedChanges) if touches and not counts else nullcontext(), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            is_last = turn == 4  # The second one of partition 1.
            if touches or not is_last:
                WORK.step(table, int(message.value() or b""))
            if counts or not is_last:
                worker.commit_every(1e9)
            if is_last:
                break
    assert _progress(world) == progress


def test_somebody_outside_of_the_group(world: WorkersWorld) -> None:
    """A foreign table that opens on a worker's partition again and again ends the worker with Fenced."""
    fences = 0
    with told("is opened again"), pytest.raises(Fenced), _worker(world) as worker:
        for message, table in worker:
            WORK.step(table, int(message.value() or b""))
            if message.partition() == 1 and fences < 50:
                fences += 1
                world.open(1).close()
                world.feed(1)
                worker.idle_s = 0.0
            worker.commit_every(0.0)
    assert 2 <= fences < 20


@pytest.mark.parametrize("interval_s", ["1", None, math.nan])
def test_an_interval_that_is_none(world: WorkersWorld, interval_s: Any) -> None:
    """An invalid interval is refused. The worker continues, and its message does not count as processed."""
    with _worker(world) as worker:
        next(worker)
        with pytest.raises(Misuse, match="number of seconds"):
            worker.commit_every(interval_s)
        assert worker.life is Life.OPEN
    assert sum(_progress(world)) == 0


def test_one_thread(world: WorkersWorld) -> None:
    """Another thread may only stop a worker, and nothing may use it after its end."""
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


@pytest.mark.parametrize("nested", ["commit", "commit_every", "close"])
@pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")  # A close between two calls discards them.
def test_a_call_from_a_signals_handler(nested: str) -> None:
    """A call inside of another one, from a signal's handler, is refused. Every commit is the fold of what it names.

    In the end all is released.
    """

    def run(at: int) -> bool:
        world = WorkersWorld()
        world.feed(4)
        worker = world.start()
        for partition in range(PARTITIONS):
            world.group.give(partition, world.workers[worker], waits=True)
        acts: dict[str, Callable[[], Any]] = {
            "commit": worker.commit,
            "commit_every": lambda: worker.commit_every(0.0),
            "close": worker.close,
        }

        def handle() -> None:
            with suppress(Misuse):
                acts[nested]()

        def work() -> None:
            for message, table in worker:
                WORK.step(table, int(message.value() or b""))
                worker.commit_every(0.0)

        has_come = False
        with handled(handle):
            try:
                has_come = at_line(at, work)
            except ClosedError:
                assert nested == "close"
                has_come = True
        worker.close()
        assert worker.life is Life.CLOSED
        done = _progress(world)
        assert nested == "close" or done == [4, 4, 4]
        return has_come

    at = 0
    while run(at):
        at += 4_001
    assert at > 4_001


# ---- input and tables


def test_an_input_that_is_made_anew_while_it_is_read(world: WorkersWorld) -> None:
    """If the input is re-created while it is read, nothing since the last commit is committed.

    Its offsets mean other messages.
    """
    with pytest.raises(IdentityChanged, match="while it was read"), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            WORK.step(table, int(message.value() or b""))
            if turn == 2:
                worker.commit()
                world.source.delete_topic("input")
                world.source.create_topic(TopicSpec(name="input", partitions=PARTITIONS, replication_factor=1))
                world.feed(4)
            if turn == 5:
                worker.commit()
    assert _progress(world) == [1, 1, 1]


def test_an_input_that_grows_while_it_is_read(world: WorkersWorld) -> None:
    """If the input grows while it is read, nothing since the last commit is committed, and restarts are refused.

    Keys may move to other partitions.
    """
    with pytest.raises(ConfigError, match="it has grown"), _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            WORK.step(table, int(message.value() or b""))
            if turn == 2:
                worker.commit()
                world.source.cluster.add_partitions("input", 1)
            if turn == 5:
                worker.commit()
    assert _progress(world) == [1, 1, 1]
    with pytest.raises(ConfigError, match="it has grown"), world.start() as worker:
        world.group.give(0, world.workers[worker], waits=True)
        next(worker)


def test_what_lag_tools_see(world: WorkersWorld) -> None:
    """Commits are published to the group now and then, and before a partition is given up.

    Uncommitted progress never is.
    """
    with _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            WORK.step(table, int(message.value() or b""))
            if turn == 4:
                worker.commit()
                world.now_s += 1.0
            if turn == 6:
                assert world.group.published == {0: 2, 1: 2, 2: 1}
    assert world.group.published == {0: 4, 1: 4, 2: 4}


def test_an_input_that_does_not_answer(world: WorkersWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed while the input does not answer, and the loop continues. Everything follows later."""

    def away(_: MemoryKafka, topic: str) -> None:
        raise BrokerUnavailable(f"{topic} is away")

    with _worker(world) as worker:
        for turn, (message, table) in enumerate(worker):
            WORK.step(table, int(message.value() or b""))
            if turn == 4:
                with told("nothing is committed"), monkeypatch.context() as patched:
                    patched.setattr(MemoryKafka, "describe_topic", away)
                    assert worker.commit() == {0: 0, 1: 0, 2: 0}
        assert worker.commit() == {0: 4, 1: 4, 2: 4}


def test_the_first_place_is_history() -> None:
    """The first position is committed before a message is handed out.

    A restart would choose a later one, and skip messages.
    """
    world = WorkersWorld()
    world.feed(4)
    opened: list[Table[Any, Any]] = []

    def crash(point: str) -> None:
        if point == "table-placed":
            opened.extend(kept)
            raise KeyboardInterrupt

    kept: list[Table[Any, Any]] = []
    open_table = world.open

    def keeping(partition: int) -> Table[Any, Any]:
        kept.append(open_table(partition))
        return kept[-1]

    world.open = keeping  # type: ignore[method-assign]  # this world's
    with pytest.raises(KeyboardInterrupt), world.start(InputStart.LATEST, crash=crash) as worker:
        world.group.give(0, world.workers[worker], waits=True)
        next(worker)
    assert [table.life for table in opened] == [Life.CLOSED]
    with statelog.table("log", world.rig.where(), key_group=0, writer="log-0") as table:
        assert table.progress["offset"] == 4


@pytest.mark.parametrize("interval_s", [0.0, 0.001, 1.0])
def test_what_is_committed_last(world: WorkersWorld, interval_s: float) -> None:
    """An idle input does not delay a commit, however often one was requested."""
    with _worker(world) as worker:
        for message, table in worker:
            WORK.step(table, int(message.value() or b""))
            worker.commit_every(interval_s)
        assert [table.progress["offset"] for table in worker.tables.values()] == [4, 4, 4]


def test_a_table_that_is_the_worker_s(world: WorkersWorld) -> None:
    """The loop can neither commit a worker's table by itself nor roll it back."""
    with _worker(world) as worker:
        for message, table in worker:
            WORK.step(table, int(message.value() or b""))
            for call in (table.commit, table.rollback):
                with pytest.raises(Misuse, match="worker's"):
                    call()
    assert _progress(world) == [4, 4, 4]


def test_a_worker_without_partitions_has_standbys() -> None:
    """A worker without partitions has standbys, although its group has never assigned it anything."""
    world, asked = WorkersWorld(), list[int]()

    def opened(partition: int) -> Standby[Any, Any]:
        asked.append(partition)
        raise BrokerUnavailable("away")

    with world.start(standbys=StandbyPool([1], opened, world.clock)) as worker:
        assert list(worker) == []
        wait_for(lambda: bool(asked))
    assert asked == [1]
