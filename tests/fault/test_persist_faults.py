"""Persists whose chunks are late, lost or unknown: the waits, the failures, and the valid rest."""

from collections.abc import Callable, Iterator

import pytest

from statelog.environment import Environment
from statelog.errors import ClosedError, OutcomeUnknown, PersistFailed, StatelogError, Unavailable
from statelog.log import Log
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings, WriterStatistics, WriterTuning
from statelog.producer.writer import Writer
from statelog.testing.faults import Fate, SendAttempt
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.log import TwinRig, twin_rig, where_at

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")

SMALL = WriterSettings(
    in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=256, chunk_bytes=64)
)
ROOMY = WriterSettings(
    in_flight_bytes_max=1500, _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=256, chunk_bytes=512)
)


class Chunks:
    """Fates of the next chunks; ledger records are delivered."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []
        self.others = Fate.DELIVER

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the next fate in the list, for a chunk."""
        if attempt.topic.endswith(".ledger"):
            return Fate.DELIVER
        return self.fates.pop(0) if self.fates else self.others


class World:
    """A log of one partition whose chunks meet their fate, and a clock that moves at every call."""

    def __init__(self) -> None:
        self.chunks = Chunks()
        self.rig: TwinRig = twin_rig("p", self.chunks)
        self.rig.create(partitions=1, key_groups=2).close()
        self.cluster = self.rig.cluster
        self.now_s = 0.0
        self.on_look: list[Callable[[], object]] = [lambda: None]

    def clock(self) -> float:
        """Return the time; a scheduled action may happen first."""
        self.now_s += 1.0
        (self.on_look.pop(0) if len(self.on_look) > 1 else self.on_look[0])()
        return self.now_s

    def writer(self, log: Log, settings: WriterSettings | None = None) -> Writer:
        """Return a writer whose waiting ends."""
        return Environment(clock=self.clock).run(Writer, log, "w", settings=settings)


@pytest.fixture
def world() -> World:
    """Return a log of opaque values."""
    return World()


@pytest.fixture
def log(world: World) -> Iterator[Log]:
    """Yield the log, opened."""
    with world.rig.open() as opened:
        yield opened


def test_a_late_chunk_is_waited_for(world: World, log: Log) -> None:
    """A checkpoint is not done until a late chunk's report comes, and its time-out may be tried again."""
    with world.writer(log) as writer:
        writer.put(b"k", b"v")
        world.chunks.fates = [Fate.DELAY]
        persist = writer.persist(1)
        assert not persist.done()
        with pytest.raises(Unavailable, match="checkpoint 1 is not over yet"):
            persist.result(0)
        assert writer.life is Life.OPEN
        writer.put(b"l", b"w")
        world.cluster.release()
        assert persist.done()
        writer.confirm(persist.result())
        assert world.rig.state() == {b"k": b"v"}
        writer.commit(checkpoint_id=2)

    assert world.rig.state() == {b"k": b"v", b"l": b"w"}


def test_a_repeated_persist_waits_for_the_same_chunks(world: World, log: Log) -> None:
    """A repeated persist sends nothing while the first is in flight, and completes with it."""
    with world.writer(log) as writer:
        writer.put(b"k", b"v")
        world.chunks.fates = [Fate.DELAY]
        first, second = writer.persist(1), writer.persist(2)
        assert writer.statistics().chunk_bytes.count == 1
        assert not second.done()
        world.cluster.release()
        assert first.done()
        assert second.result().entries == first.result().entries


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.SKIP, Fate.APPEND_UNANSWERED, Fate.ACK_WITHOUT_OFFSET])
def test_a_failed_change_set_takes_every_later_one_with_it(world: World, log: Log, fate: Fate) -> None:
    """A failed change set fails every later one, again and again; earlier checkpoints stay valid and can be adopted."""
    with world.writer(log) as writer:
        writer.put(b"a", b"1")
        good = writer.persist(1)
        failed_sqn = writer.next_sequence_number()
        writer.put(b"b", b"2")
        world.chunks.fates = [fate]
        with pytest.raises(PersistFailed):
            writer.persist(2).result()
        for from_sqn in (None, writer.initial_sequence_number, failed_sqn):
            with pytest.raises(PersistFailed) as caught:
                writer.persist(3, from_sqn=from_sqn)
            assert caught.value.facts["failed_sqn"] == failed_sqn
        assert writer.life is Life.FAILED
        with pytest.raises(ClosedError):
            writer.put(b"c", b"3")
        handle = good.result()
        assert writer.statistics().failed_chunks == 1
    with world.rig.open() as again, world.writer(again) as later:
        later.adopt(handle)

    assert world.rig.state() == {b"a": b"1"}


def test_a_failure_is_found_by_the_next_call(world: World, log: Log) -> None:
    """The next persist is refused once a bad report came in, although nobody asked for the result."""
    with world.writer(log) as writer:
        writer.put(b"a", b"1")
        world.chunks.fates = [Fate.SKIP]
        writer.next_sequence_number()
        with pytest.raises(PersistFailed):
            writer.persist(1)
        with pytest.raises(PersistFailed):
            writer.persist(2)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("error", [PersistFailed, OutcomeUnknown])
def test_what_a_person_has_to_do_comes_first_in_the_hint(world: World, log: Log, error: type[StatelogError]) -> None:
    """The hint names a person's task first where a limit was lowered under a writer, on either topic.

    Opening again alone would only be refused again.
    """
    topic = log.data_topic if error is PersistFailed else log.ledger_topic
    with world.writer(log) as writer:
        world.cluster.set_topic_config(topic, {"max.message.bytes": "100"})
        writer.put(b"k", bytes(1000))
        with pytest.raises(error) as caught:
            writer.commit(checkpoint_id=1)
    assert caught.value.hint.startswith(f"Raise max.message.bytes of topic {topic} ")
    assert "open the writer again" in caught.value.hint


def test_two_checkpoints_in_flight_of_which_the_second_fails(world: World, log: Log) -> None:
    """The first of two checkpoints in flight is independent of the second one's failure."""
    with world.writer(log) as writer:
        writer.put(b"a", b"1")
        world.chunks.fates = [Fate.DELAY]
        first = writer.persist(1)
        writer.put(b"b", b"2")
        world.chunks.fates = [Fate.DELAY]
        second = writer.persist(2)
        world.cluster.release(1)
        handle = first.result()
        with pytest.raises(PersistFailed, match="no delivery report"):
            second.result()
        assert second.done()
        assert first.result() is handle


def test_a_report_after_the_time_was_over_changes_nothing(world: World, log: Log) -> None:
    """A late report changes nothing: a failed persist stays so, even when its chunk is acknowledged in the end."""
    with world.writer(log) as writer:
        writer.put(b"a", b"1")
        world.chunks.fates = [Fate.DELAY]
        persist = writer.persist(1)
        with pytest.raises(PersistFailed, match="no delivery report"):
            persist.result()
        world.cluster.release()
        for _ in range(2):
            with pytest.raises(PersistFailed):
                writer.persist(2)
        with pytest.raises(PersistFailed):
            persist.result()

    assert writer.statistics().in_flight_bytes == 0


def test_an_interrupted_wait_ends_the_writer(world: World, log: Log) -> None:
    """Ctrl-C in a wait for a result may lose a report, so nothing more is committed."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with world.writer(log) as writer:
        writer.put(b"a", b"1")
        world.chunks.fates = [Fate.DELAY]
        persist = writer.persist(1)
        world.on_look = [interrupt, lambda: None]
        with pytest.raises(KeyboardInterrupt):
            persist.result()
        assert writer.life is Life.FAILED
        with pytest.raises(ClosedError):
            writer.put(b"b", b"2")
    assert world.rig.state() == {}


def test_closing_ends_what_is_under_way(world: World, log: Log) -> None:
    """A checkpoint in flight at close fails, its bytes are given back, and late reports do nothing."""
    writer = world.writer(log)
    writer.put(b"a", b"1")
    world.chunks.fates = [Fate.DELAY]
    persist = writer.persist(1)
    assert writer.statistics().in_flight_bytes > 0
    writer.close()
    world.cluster.release()

    assert persist.done()
    with pytest.raises(PersistFailed, match="closed before"):
        persist.result()
    assert writer.statistics().in_flight_bytes == 0
    assert world.rig.state() == {}


def test_truncate_and_close_waits_for_checkpoints_under_way(world: World, log: Log) -> None:
    """A checkpoint in flight completes before the clients close: its needed changes are not dropped."""
    writer = world.writer(log)
    writer.put(b"a", b"1")
    world.chunks.fates = [Fate.DELAY]
    persist = writer.persist(1)
    world.on_look = [lambda: None, lambda: None, world.cluster.release, lambda: None]
    writer.truncate_and_close(writer.next_sequence_number())

    assert writer.life is Life.CLOSED
    assert persist.result().changes == 1


def test_back_pressure_blocks_and_unblocks(world: World, log: Log) -> None:
    """Bytes in flight add up over change sets; at the limit the writer is not available, and waits."""
    world.chunks.others = Fate.DELAY
    looks: list[WriterStatistics] = []

    def watch() -> None:
        looks.append(writer.statistics())
        world.cluster.release(1)

    with world.writer(log, ROOMY) as writer:
        assert writer.available
        writer.put(b"k", bytes(200))
        first = writer.persist(1)
        assert writer.available
        before = writer.statistics().in_flight_bytes
        writer.put(b"l", bytes(200))
        writer.persist(2)
        assert writer.statistics().in_flight_bytes > before
        assert not writer.available
        world.on_look = [watch]
        for i in range(40):
            writer.put(b"%d" % i, bytes(100))
        world.on_look = [lambda: None]
        world.chunks.others = Fate.DELIVER
        world.cluster.release()
        assert writer.available
        assert writer.statistics().blocked_s.count > 0
        assert first.result().changes == 1
        writer.commit(checkpoint_id=3)

    assert not looks[0].available
    assert max(look.in_flight_bytes for look in looks) <= ROOMY.in_flight_bytes_max
    assert len(world.rig.state()) == 42


def test_bytes_are_given_back_when_a_chunk_fails(world: World, log: Log) -> None:
    """Any report, good or bad, ends a chunk's share of the bytes in flight."""
    with world.writer(log, SMALL) as writer:
        world.chunks.fates = [Fate.DELIVER, Fate.SKIP]
        with pytest.raises(PersistFailed):
            for i in range(100):
                writer.put(b"%d" % i, bytes(100))
        assert writer.statistics().in_flight_bytes == 0
        assert writer.statistics().in_flight_chunks == 0


def test_a_failure_ends_the_wait_for_room(world: World, log: Log) -> None:
    """A blocked writer learns of a failed chunk at once, not after the client's own time-out."""
    world.chunks.others = Fate.DELAY
    with world.writer(log, SMALL) as writer:
        world.on_look = [lambda: None, world.cluster.expire]
        with pytest.raises(PersistFailed):
            for i in range(100):
                writer.put(b"%d" % i, bytes(100))
        assert world.now_s < 25
        assert writer.life is Life.FAILED


def test_a_full_client_queue_is_waited_for(world: World) -> None:
    """A full client queue is waited for: it takes two records at a time, the rest waits, and each is sent once."""
    kafka = MemoryKafka(cluster=world.cluster, queue_limit=2)
    world.chunks.others = Fate.DELAY
    with Log.open("p", where_at(kafka, world.rig.store())) as log, world.writer(log) as writer:
        for i in range(4):
            writer.put(b"%d" % i, b"v")
            writer.next_sequence_number()
        world.on_look = [lambda: world.cluster.release(1)]
        persist = writer.persist(1)
        world.cluster.release()
        writer.confirm(persist.result())
        assert writer.statistics().blocked_s.count >= 1
        assert writer.statistics().chunk_bytes.count == 4

    assert len(world.cluster.records("p", 0)) == 4
    assert len(world.rig.state()) == 4


def test_a_settled_commit_goes_on_with_rolled_over_changes(world: World, log: Log) -> None:
    """Rolled-over unsent changes are sent under the epoch that resolved the commit."""
    lost = [Fate.LOSE]
    chunk_fate = world.chunks.fate

    def fate(attempt: SendAttempt) -> Fate:
        return lost.pop() if lost and attempt.topic.endswith(".ledger") and armed else chunk_fate(attempt)

    armed = False
    world.chunks.fate = fate  # type: ignore[method-assign]  # the commit's fate, on top of the chunks'
    with world.writer(log) as writer:
        epoch = writer.grant.epoch
        writer.put(b"a", b"1")
        handle = writer.persist(1).result()
        writer.put(b"b", b"2")
        writer.next_sequence_number()
        armed = True
        writer.confirm(handle)
        assert writer.grant.epoch > epoch
        assert writer.statistics().settled_commits == 1
        writer.put(b"c", b"3")
        writer.commit(checkpoint_id=2)

    assert world.rig.state() == {b"a": b"1", b"b": b"2", b"c": b"3"}
