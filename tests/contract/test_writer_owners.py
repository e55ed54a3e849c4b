"""The owners of a writer, a coordinator or a task writer, and their release, on the twins and on a real broker."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest

from statelog.errors import ClosedError
from statelog.log import Log
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.writer import Writer
from tests.support.rigs.log import LogRig


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """Yield a new log of opaque values under bytes keys."""
    with rig.create(partitions=2) as created:
        yield created


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """Free objects by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watch(owner: object, *parts: str) -> list[weakref.ref[Any]]:
    """Return weak references to `owner` and these parts of it."""
    return [weakref.ref(owner), *(weakref.ref(attrgetter(part)(owner)) for part in parts)]


@pytest.mark.filterwarnings("ignore:.*closed with uncommitted changes.*:UserWarning")
@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("is_final", [False, True])
def test_a_closed_writer_is_freed_at_once(log: Log, is_final: bool) -> None:
    """A closed writer's buffers and clients are freed with the last reference, without a collection."""
    writer = Writer(log, "w")
    writer.put(b"k", b"v")
    writer.commit(checkpoint_id=1, final=is_final)
    if not is_final:
        writer.put(b"k", b"w")
        writer.persist(2).result()
        writer.close()
    left = watch(writer, "_pipeline", "_committer", "_committer.opened.producer")
    del writer

    assert [one() for one in left] == [None] * 4


@pytest.mark.filterwarnings("ignore:unclosed .* of statelog:ResourceWarning")
@pytest.mark.usefixtures("_uncollected")
def test_a_writer_that_was_forgotten_open_is_freed_at_once(log: Log) -> None:
    """A forgotten open writer is freed at once: its clients' threads and connections end with it."""
    writer = Writer(log, "w")
    writer.put(b"k", b"v")
    left = watch(writer, "_committer.opened.producer")
    del writer

    assert [one() for one in left] == [None] * 2


@pytest.mark.usefixtures("_uncollected")
def test_a_closed_coordinator_and_its_tasks_are_freed_at_once(log: Log) -> None:
    """A closed coordinator and its tasks are freed at once, like a writer."""
    producer = log.kafka.producer()
    coordinator = Coordinator(log, "c")
    task = TaskWriter(producer, coordinator.task(1), slot=0)
    task.put(b"k", b"v")
    coordinator.commit([task.finish()], checkpoint_id=1)
    coordinator.close()
    producer.close()
    left = watch(coordinator, "_committer") + watch(task, "_outbox") + watch(producer)
    del coordinator, task, producer

    assert [one() for one in left] == [None] * 5


USES: dict[str, Callable[[Coordinator], object]] = {
    "commit": lambda coordinator: coordinator.commit([], checkpoint_id=1),
    "task": lambda coordinator: coordinator.task(1),
    "refresh": lambda coordinator: coordinator.refresh(),
    "close": lambda coordinator: coordinator.close(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_second_thread_is_refused_by_a_coordinator(log: Log, use: Callable[[Coordinator], object]) -> None:
    """A second thread is refused by a coordinator: two threads in one ledger client would each see half of its records.

    The owner goes on.
    """
    found: list[BaseException] = []

    def intrude() -> None:
        try:
            use(coordinator)
        except ClosedError as error:
            found.append(error)

    with Coordinator(log, "c") as coordinator:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        assert coordinator.commit([], checkpoint_id=1).checkpoint.id == 1

    assert len(found) == 1


def test_a_forked_child_is_refused_by_a_coordinator(log: Log) -> None:
    """A forked child's copy of a coordinator closes without touching the parent's clients; the parent goes on."""
    coordinator = Coordinator(log, "c")
    child = os.fork()
    if child == 0:
        try:
            coordinator.commit([], checkpoint_id=1)
        except ClosedError as error:
            coordinator.close()
            os._exit(0 if "belongs to the thread and process" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert coordinator.commit([], checkpoint_id=1).checkpoint.id == 1
    coordinator.close()


@pytest.mark.parametrize("use", [USES["commit"], USES["task"], USES["refresh"]], ids=["commit", "task", "refresh"])
def test_a_closed_coordinator_is_over(log: Log, use: Callable[[Coordinator], object]) -> None:
    """A closed coordinator says so at every call."""
    coordinator = Coordinator(log, "c")
    coordinator.close()

    with pytest.raises(ClosedError, match="the coordinator is closed"):
        use(coordinator)


def test_an_orphaned_coordinator_is_closed_by_anybody(log: Log) -> None:
    """Any thread may close an orphaned coordinator: once its opener has ended, nobody can be inside its clients."""
    made: list[Coordinator] = []
    thread = threading.Thread(target=lambda: made.append(Coordinator(log, "c")))
    thread.start()
    thread.join()

    made[0].close()

    with pytest.raises(ClosedError):
        made[0].refresh()
