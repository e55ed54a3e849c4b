"""A writer that is interrupted, forked, or closed in the middle of a call: it ends, and leaves no client open."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import ClosedError, ConfigError, InvalidChange, NestedCall
from statelog.log import Log
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.testing.faults import Fate, SendAttempt
from statelog.testing.kafka import MemoryKafka, MemoryProducer
from tests.support.faults.signals import at_line, handled
from tests.support.rigs.log import WAIVED, LogRig, twin_rig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")


@pytest.fixture
def rig() -> LogRig:
    """Return a log's two places, in memory."""
    return twin_rig("l")


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """Yield a new log of opaque values under bytes keys."""
    with rig.create() as created:
        yield created


class InterruptedValue(bytes):
    """A value that raises KeyboardInterrupt while it is buffered."""

    __slots__ = ()

    def __len__(self) -> int:
        raise KeyboardInterrupt


def test_an_interrupted_put_ends_the_writer(rig: LogRig, log: Log) -> None:
    """Ctrl-C half way through a put leaves the buffer in doubt, so no part of it can be committed."""
    writer = Writer(log, "w")
    writer.put(b"k", b"v")
    with pytest.raises(KeyboardInterrupt):
        writer.put(b"l", InterruptedValue(b"w"))
    assert writer.life is Life.FAILED
    with pytest.raises(ClosedError):
        writer.commit(checkpoint_id=1)
    writer.close()

    assert rig.state() == {}


def test_an_interrupted_task_ends(log: Log) -> None:
    """An interrupted task gives no handle afterwards."""
    with Coordinator(log, "c") as coordinator:
        task = TaskWriter(log.kafka.producer(), coordinator.task(1), slot=0)
        with pytest.raises(KeyboardInterrupt):
            task.put(b"l", InterruptedValue(b"w"))
        with pytest.raises(ClosedError):
            task.finish()


def test_a_forked_child_has_no_task(rig: LogRig, log: Log) -> None:
    """A forked child has no task: parent and child would send indistinguishable chunks under one number."""
    with Coordinator(log, "c") as coordinator:
        task = TaskWriter(log.kafka.producer(), coordinator.task(1), slot=0)
        task.put(b"k", b"v")
        child = os.fork()
        if child == 0:
            try:
                task.finish()
            except ClosedError:
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        coordinator.commit([task.finish()], checkpoint_id=1)

    assert os.waitstatus_to_exitcode(status) == 0
    assert rig.state() == {b"k": b"v"}


def test_another_thread_does_not_close_a_writer_at_work(rig: LogRig, log: Log) -> None:
    """Another thread does not close a writer at work, whose owner may be inside its clients.

    Any thread may once the owner's has ended.
    """
    made: list[Writer] = []
    refusals: list[BaseException] = []

    def close() -> None:
        try:
            made[0].close()
        except ClosedError as error:
            refusals.append(error)

    def in_thread(target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    made.append(Writer(log, "w"))
    made[0].put(b"k", b"v")
    in_thread(close)
    made[0].commit(checkpoint_id=1)
    made[0].close()
    with rig.open() as again:
        in_thread(lambda: made.append(Writer(again, "x")))
        made[1].close()

    assert len(refusals) == 1
    assert [writer.life for writer in made] == [Life.CLOSED, Life.CLOSED]


def test_a_writer_is_not_closed_inside_a_commit(rig: LogRig, log: Log) -> None:
    """A writer is not closed inside a commit, as by a signal's handler: its clients are in use.

    The refusal comes out here, and breaks the commit off.
    """
    writer = Environment(crash=lambda point: writer.close() if point == "commit-made" else None).run(Writer, log, "w")
    writer.put(b"k", b"v")
    with pytest.raises(NestedCall):
        writer.commit(checkpoint_id=1)

    assert writer.life is Life.FAILED
    writer.close()
    assert rig.state() == {}


def test_an_open_that_is_interrupted_leaves_no_client(log: Log) -> None:
    """An Open that is interrupted leaves no client: nobody has the writer, so nobody else could close its clients."""
    made: list[MemoryProducer] = []

    class Remembering(MemoryKafka):
        def producer(self) -> MemoryProducer:
            made.append(super().producer())
            return made[-1]

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    assert isinstance(log.kafka, MemoryKafka)
    watched = Log(log.descriptor, Remembering(cluster=log.kafka.cluster), log.store, waived=WAIVED)
    with pytest.raises(KeyboardInterrupt):
        Environment(crash=interrupt).run(Writer, watched, "w")

    assert len(made) == 1
    with pytest.raises(ClosedError):
        made[0].poll(0)


class Stuck:
    """Fates where every chunk stays in flight."""

    def fate(self, attempt: SendAttempt) -> Fate:
        """Delay the record, unless it is a ledger record."""
        return Fate.DELIVER if attempt.topic.endswith(".ledger") else Fate.DELAY


def test_an_interrupt_while_blocked_ends_the_writer() -> None:
    """Ctrl-C while a full buffer waits for room ends the writer: half of the buffer is sent, and nothing counts."""
    left = math.inf

    def clock() -> float:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return 0.0

    rig = twin_rig("l", Stuck())
    settings = WriterSettings(
        in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=256, chunk_bytes=64)
    )
    with rig.create() as log:
        writer = Environment(clock=clock).run(Writer, log, "w", settings=settings)
        left = 4
        with pytest.raises(KeyboardInterrupt):
            for i in range(1_000):
                writer.put(b"%d" % i, bytes(20))
        assert not writer.available
        with pytest.raises(ClosedError):
            writer.put(b"k", b"v")
        writer.close()

    assert writer.statistics().in_flight_bytes == 0
    assert rig.state() == {}


def _refused(put: Callable[[], None]) -> None:
    with suppress(InvalidChange):
        put()


ACTS: dict[str, Callable[[Writer], None]] = {
    "put": lambda writer: writer.put(b"k", b"k"),
    "delete": lambda writer: writer.delete(b"k"),
    "large put": lambda writer: writer.put(b"k", bytes(1 << 20)),
    "refused put": lambda writer: _refused(lambda: writer.put(b"k", 1)),
    "append_batch": lambda writer: writer.append_batch(pa.table({"key": [b"k"], "value": [b"k"]})),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_refusal_that_a_handler_raises_ends_the_writer_or_nothing(act: str) -> None:
    """A handler's refusal at any line of a call ends the writer or nothing; the writer says which, and closes."""

    def refuse() -> None:
        raise ConfigError("that of another object")

    with twin_rig("l").create() as log:
        for at in count():
            writer, has_come = Writer(log, "w"), True
            with handled(refuse), suppress(ConfigError):
                has_come = at_line(at, partial(ACTS[act], writer))
            is_open = writer.life is Life.OPEN
            try:
                writer.put(b"l", b"l")
            except ClosedError:
                assert not is_open, f"at line {at}"
            writer.close()
            if not has_come:
                assert at > 5
                return
