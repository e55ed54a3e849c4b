"""Commits and Opens whose outcome is unknown: resolved before anything else, reported truthfully, never sent twice."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from statelog.environment import Environment, random_nonce
from statelog.errors import BrokerUnavailable, ClosedError, CommitRefused, Fenced, OutcomeUnknown, PersistFailed
from statelog.kafka import port
from statelog.kafka.config import MAX_MESSAGE_BYTES
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.guard import Life
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.records import Commit, decode
from statelog.schemas.ledger.state import LastCommit
from statelog.testing.faults import Fate, SendAttempt
from tests.support.rigs.log import TwinRig, key_in, settings_for, twin_rig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")

POINT = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]}'
WIDER = """{"type": "record", "name": "Point", "fields": [
    {"name": "y", "type": ["null", "string"], "default": null}, {"name": "x", "type": "long"}]}"""


class LedgerFaults:
    """Fates of the next records that are sent to the ledger; all others are delivered."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []
        self.on_send: Callable[[], None] | None = None

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the next fate in the list, for a ledger record."""
        if not attempt.topic.endswith(".ledger"):
            return Fate.DELIVER
        if self.on_send is not None:
            call, self.on_send = self.on_send, None
            call()
        return self.fates.pop(0) if self.fates else Fate.DELIVER


class Clock:
    """A clock that moves a second at every call, so that waiting ends."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now_s += 1.0
        return self.now_s


class World:
    """One log whose ledger misbehaves on demand."""

    def __init__(self, value_schema: str | None = None) -> None:
        self.faults = LedgerFaults()
        self.rig: TwinRig = twin_rig("s", self.faults)
        self.rig.create(value_schema=value_schema).close()
        self.cluster = self.rig.cluster

    def writer(self, log: Log, name: str = "w") -> Writer:
        """Return a writer whose waiting ends."""
        return Environment(clock=Clock()).run(Writer, log, name)

    def last(self, name: str = "w") -> LastCommit | None:
        """Return the writer's last commit in the ledger."""
        with self.rig.open() as log:
            return log.describe().state.last_commit(name)

    def commits(self) -> int:
        """Return how many Commit records lie in the ledger, valid or void."""
        found = [decode(record.value) for record in self.cluster.records("s.ledger", 0)]
        return sum(isinstance(record, Commit) for record in found)


@pytest.fixture
def world() -> World:
    """Return a log of opaque values."""
    return World()


UNANSWERED = [Fate.APPEND_UNANSWERED, Fate.ACK_WITHOUT_OFFSET]


@pytest.mark.parametrize("fate", UNANSWERED)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_commit_that_landed_is_told_as_committed(world: World, fate: Fate, final: bool, before: int) -> None:
    """A landed, valid commit is found by the new Open and not sent again, also a final one and a writer's first."""
    with world.rig.open() as log, world.writer(log) as writer:
        for i in range(before):
            writer.put(b"k", b"before")
            writer.commit(checkpoint_id=i + 1)
        writer.put(b"k", b"v")
        world.faults.fates = [fate]
        offset = writer.commit({"offset": "42"}, checkpoint_id=7, final=final).offset
        assert writer.last_commit is not None
        assert writer.last_commit.offset == offset

    assert world.commits() == before + 1
    assert world.rig.state() == {b"k": b"v"}
    last = world.last()
    assert (last is None) if final else (last is not None and last.offset == offset)


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.SKIP])
@pytest.mark.parametrize("final", [False, True])
def test_a_commit_that_was_lost_is_committed_under_a_new_epoch(world: World, fate: Fate, final: bool) -> None:
    """A lost commit's handle is committed again after the Open that made sure, and the writer goes on."""
    with world.rig.open() as log, world.writer(log) as writer:
        epoch = writer.grant.epoch
        writer.put(b"k", b"v")
        world.faults.fates = [fate]
        handle = writer.persist(1).result()
        writer.confirm(handle, final=final)
        assert writer.last_commit is not None
        assert writer.last_commit.checkpoint == handle.checkpoint
        assert writer.grant.epoch > epoch
        if not final:
            writer.put(b"l", b"w")
            writer.commit(checkpoint_id=2)

    assert world.rig.state() == ({b"k": b"v"} if final else {b"k": b"v", b"l": b"w"})


def test_a_quiet_commit_keeps_its_checkpoint_when_it_is_settled(world: World) -> None:
    """A resolved commit's checkpoint, nonce included, is the stored handle's, also when nothing was changed."""
    with world.rig.open() as log, world.writer(log) as writer:
        handle = writer.persist(1).result()
        world.faults.fates = [Fate.LOSE]
        writer.confirm(handle)

    last = world.last()
    assert last is not None
    assert last.checkpoint == handle.checkpoint


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up waiting for a report within half a second: here it never comes."""
    monkeypatch.setattr(port, "STALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(port, "_GRACE_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_commit_that_lands_after_its_successor_is_void(world: World) -> None:
    """A late commit is void: the Open that resolved it lies before it, and its changes count once."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        world.faults.fates = [Fate.DELAY]
        handle = writer.persist(1).result()
        writer.confirm(handle)
        writer.put(b"k", b"newer")
        writer.commit(checkpoint_id=2)
        assert world.cluster.release() == 1
        writer.put(b"l", b"w")
        writer.commit(checkpoint_id=3)

    assert world.commits() == 4
    assert world.rig.state() == {b"k": b"newer", b"l": b"w"}


def take_over(world: World, then: Callable[[Writer], None] | None = None) -> Callable[[], None]:
    """Return a function that opens the writer's name in another process at the next ledger record."""

    def call() -> None:
        fates, world.faults.fates = world.faults.fates, []
        with world.rig.open() as other, Writer(other, "w") as thief:
            if then is not None:
                then(thief)
        world.faults.fates = fates

    return call


def test_taken_over_before_the_commit_is_fenced(world: World) -> None:
    """A writer that another process replaced before its lost commit is Fenced, and does not take the epoch back."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        world.faults.fates = [Fate.LOSE]
        world.faults.on_send = take_over(world)
        with pytest.raises(Fenced):
            writer.commit(checkpoint_id=1)
        assert writer.life is Life.FAILED
    with world.rig.open() as log:
        newest = log.describe().state.live

    assert [live.epoch for live in newest] == [2]
    assert world.rig.state() == {}


def test_taken_over_after_the_commit_landed_is_committed_and_over(world: World) -> None:
    """A commit that landed before another process opened, and even continued it, is acknowledged, as the last one."""

    def go_on(thief: Writer) -> None:
        thief.put(b"l", b"w")
        thief.commit(checkpoint_id=2)

    lives = 0

    def new_nonce() -> bytes:
        nonlocal lives
        lives += 1
        if lives == 2:  # The Open that is to resolve the commit is being made.
            take_over(world, go_on)()
        return random_nonce()

    with world.rig.open() as log, Environment(clock=Clock(), nonce=new_nonce).run(Writer, log, "w") as writer:
        writer.put(b"k", b"v")
        world.faults.fates = [Fate.APPEND_UNANSWERED]
        assert writer.commit(checkpoint_id=1).offset == 2
        assert writer.life is Life.FAILED
        with pytest.raises(Fenced):
            writer.put(b"m", b"x")

    assert world.rig.state() == {b"k": b"v", b"l": b"w"}


def test_a_commit_whose_verdict_cannot_be_read_is_unknown_and_not_retryable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A landed commit whose verdict cannot be read is unknown, not Unavailable, which would invite a second try."""

    def refuse(*_: object) -> NoReturn:
        raise BrokerUnavailable("no answer")

    with world.rig.open() as log, Coordinator(log, "w", partitions=[0]) as coordinator:
        for name in ("reader", "follower"):
            monkeypatch.setattr(log.kafka, name, refuse)
        with pytest.raises(OutcomeUnknown) as caught:
            coordinator.commit([], {"offset": "1"}, checkpoint_id=1)
        with pytest.raises(ClosedError):
            coordinator.commit([], {"offset": "1"}, checkpoint_id=1)
        monkeypatch.undo()

    assert isinstance(caught.value.__cause__, BrokerUnavailable)
    last = world.last()
    assert last is not None
    assert last.metadata == {"offset": "1"}


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_valid_commit_that_is_not_believed_yet_is_found_when_it_is_settled(
    world: World, before: int, *, final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A valid commit that is folded while the cluster hides its identity is not sent again, nor called refused."""
    with Environment(clock=Clock()).run(world.rig.open) as log, world.writer(log) as writer:
        for i in range(before):
            writer.put(b"k", b"before")
            writer.commit(checkpoint_id=i + 1)

        def no_answer(*_: object) -> NoReturn:
            monkeypatch.undo()
            raise BrokerUnavailable("no answer")

        writer.put(b"k", b"v")
        handle = writer.persist(7).result()
        world.faults.on_send = lambda: monkeypatch.setattr(log.kafka, "identify", no_answer)
        writer.confirm(handle, final=final)
        assert writer.last_commit is not None
        assert writer.last_commit.checkpoint == handle.checkpoint

    assert world.commits() == before + 1
    assert world.rig.state() == {b"k": b"v"}


def test_settling_that_fails_is_unknown(world: World) -> None:
    """If every Open stays unanswered, too, the outcome is unknown; the next incarnation finds it."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        world.faults.fates = [Fate.APPEND_UNANSWERED, *[Fate.LOSE] * 30]
        with pytest.raises(OutcomeUnknown, match="Commit"):
            writer.commit({"offset": "1"}, checkpoint_id=1)
    world.faults.fates = []
    with world.rig.open() as log, world.writer(log) as writer:
        assert writer.last_commit is not None
        assert writer.last_commit.metadata == {"offset": "1"}

    assert world.rig.state() == {b"k": b"v"}


def test_a_pipelined_commit_is_left_to_the_next_life(world: World) -> None:
    """A commit with a later change set in flight stays unknown: a new epoch could not commit that one."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        first = writer.persist(1).result()
        writer.put(b"k", b"w")
        writer.persist(2).result()
        world.faults.fates = [Fate.LOSE]
        with pytest.raises(OutcomeUnknown):
            writer.confirm(first)

    assert world.rig.state() == {}


def test_a_commit_that_includes_a_skipped_checkpoint_is_settled(world: World) -> None:
    """A commit that includes a skipped checkpoint is resolved and sent again: nothing is in flight beyond it."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        writer.persist(1).result()
        writer.put(b"l", b"w")
        second = writer.persist(2).result()
        world.faults.fates = [Fate.LOSE]
        writer.confirm(second)
        writer.put(b"m", b"x")
        writer.commit(checkpoint_id=3)
        found = writer.statistics()

    assert (found.settled_commits, found.confirm_failures) == (1, 0)
    assert (found.commit_attempts.count, found.commit_attempts.largest, found.commit_attempts.total) == (2, 2, 3)
    assert world.rig.state() == {b"k": b"v", b"l": b"w", b"m": b"x"}


@pytest.mark.parametrize("roll_over", [False, True])
def test_a_commit_with_chunks_sent_ahead_is_left_to_the_next_life(world: World, roll_over: bool) -> None:
    """A commit with chunks sent ahead in this epoch is left to the next incarnation, in one change set or more."""
    settings = WriterSettings(_tuning=WriterTuning(roll_rows=1, list_bytes=1, roll_bytes=1))
    with world.rig.open() as log, Environment(clock=Clock()).run(Writer, log, "w", settings=settings) as writer:
        writer.put(b"k", b"v")
        first = writer.persist(1).result()
        writer.put(b"k", b"w")
        if roll_over:
            writer.next_sequence_number()
            writer.put(b"l", b"w")
        world.faults.fates = [Fate.LOSE]
        with pytest.raises(OutcomeUnknown):
            writer.confirm(first)

    assert world.rig.state() == {}


@pytest.mark.parametrize("fate", [*UNANSWERED, Fate.LOSE, Fate.SKIP, Fate.DELAY])
@pytest.mark.usefixtures("impatient")
def test_an_unknown_open_is_settled_by_the_next(world: World, fate: Fate) -> None:
    """The opener after an unknown Open, landed, lost or late, gets a live epoch; a late one fences nobody."""
    world.faults.fates = [fate]
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"k", b"v")
        writer.commit(checkpoint_id=1)
        world.cluster.release()
        writer.put(b"l", b"w")
        writer.commit(checkpoint_id=2)

    assert world.rig.state() == {b"k": b"v", b"l": b"w"}


def test_an_interrupted_commit_is_never_sent_again(world: World) -> None:
    """Ctrl-C between a commit and its answer ends the coordinator: the same call again would send it twice."""
    with world.rig.open() as log:
        coordinator = Environment(crash=raise_at("committed")).run(Coordinator, log, "w")
        with pytest.raises(KeyboardInterrupt):
            coordinator.commit([], {"offset": "1"}, checkpoint_id=1)
        with pytest.raises(ClosedError):
            coordinator.commit([], {"offset": "1"}, checkpoint_id=1)
        coordinator.close()

    assert world.commits() == 1


def raise_at(point: str) -> Callable[[str], None]:
    """Return a crash point that raises KeyboardInterrupt."""

    def crash(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    return crash


def test_a_settled_writer_goes_on_with_its_value_schema() -> None:
    """A schema that was added meanwhile is for the next incarnation: the buffer has the old one's shape."""
    world = World(POINT)
    with world.rig.open() as log, world.writer(log) as writer:
        writer.put(b"a", {"x": 1})
        handle = writer.persist(1).result()
        log.value_schemas.add(WIDER)
        writer.put(b"b", {"x": 2})
        world.faults.fates = [Fate.LOSE]
        writer.confirm(handle)
        writer.put(b"c", {"x": 3})
        writer.commit(checkpoint_id=2)

    assert world.rig.state() == {b"a": {"x": 1}, b"b": {"x": 2}, b"c": {"x": 3}}


def test_tasks_of_a_settled_checkpoint_are_committed_under_the_new_epoch(world: World) -> None:
    """A coordinator resolves as a writer does; the next checkpoint's tasks get the new grant."""
    with world.rig.open() as log, Environment(clock=Clock()).run(Coordinator, log, "w") as coordinator:
        first = coordinator.task(1)
        world.faults.fates = [Fate.LOSE]
        coordinator.commit([task_of(log, coordinator, 1, {b"k": b"v"})], checkpoint_id=1)
        second = coordinator.task(2)
        coordinator.commit([task_of(log, coordinator, 2, {b"l": b"w"})], checkpoint_id=2)

    assert second.grant.epoch > first.grant.epoch
    assert second.base.nonce == first.grant.nonce
    assert world.rig.state() == {b"k": b"v", b"l": b"w"}


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_checkpoint_that_another_process_committed_under_the_grant_is_not_ours(
    world: World, before: int, tmp_path: Path, *, is_hidden: bool
) -> None:
    """A checkpoint that a successor under the grant committed is not ours: same id and nonce, other changes.

    Our process was taken for dead. If rounds have truncated the commit since, nobody knows whose it was.
    """
    with (
        world.rig.open() as log,
        world.rig.open() as elsewhere,
        Writer(elsewhere, "others", partitions=[2]) as beside,
        Environment(clock=Clock()).run(Coordinator, log, "w", partitions=[0, 1]) as coordinator,
        Coordinator(elsewhere, "w", grant=coordinator.grant) as successor,
    ):
        keys = [key_in(log, partition) for partition in (0, 1)]
        for _ in range(before):
            coordinator.commit()
            successor.refresh()
        ours, others = (task_of(log, coordinator, before + 1, {key: b"v"}) for key in keys)

        def overtake() -> None:
            successor.commit([others])
            for _ in range(2 * is_hidden):
                beside.commit()
                run_round(elsewhere, settings_for(tmp_path))
            world.faults.fates = [Fate.LOSE]

        world.faults.on_send = overtake
        with pytest.raises(OutcomeUnknown if is_hidden else CommitRefused):
            coordinator.commit([ours])

    assert world.rig.state() == {keys[1]: b"v"}


def task_of(log: Log, coordinator: Coordinator, checkpoint_id: int, changes: dict[bytes, bytes]) -> Handle:
    """Return the handle of one task that puts `changes`."""
    task = TaskWriter(log.kafka.producer(), coordinator.task(checkpoint_id), slot=checkpoint_id)
    for key, value in changes.items():
        task.put(key, value)
    return task.finish()


@pytest.mark.usefixtures("busy_ledger")
def test_a_limit_that_was_lowered_is_named(world: World) -> None:
    """A commit that a broker refuses for its size may have landed before: unknown, with the setting's name."""
    with world.rig.open() as log, world.writer(log) as writer:
        writer.commit(checkpoint_id=1)
        world.cluster.set_topic_config("s", {"max.message.bytes": "1000"})
        writer.put(b"k", bytes(2_000))
        with pytest.raises(PersistFailed, match="not become durable") as caught:
            writer.commit(checkpoint_id=2)
        assert "max.message.bytes of topic s" in str(caught.value.facts["reason"])
    world.cluster.set_topic_config("s", {"max.message.bytes": str(MAX_MESSAGE_BYTES + (64 << 10))})
    with world.rig.open() as log, world.writer(log) as writer:
        world.cluster.set_topic_config("s.ledger", {"max.message.bytes": "1000"})
        with pytest.raises(OutcomeUnknown) as unknown:
            writer.commit({"metadata": "x" * 2_000}, checkpoint_id=2)
        assert "max.message.bytes of topic s.ledger" in str(unknown.value.facts["reason"])
    world.cluster.set_topic_config("s.ledger", {"max.message.bytes": str(MAX_MESSAGE_BYTES + (64 << 10))})
    with world.rig.open() as log, world.writer(log) as writer:
        writer.commit(checkpoint_id=2)
    assert world.commits() == 2
