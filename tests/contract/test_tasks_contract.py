"""The promises of a coordinator and its tasks, on the in-memory twins and on a real broker alike."""

import pickle
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import (
    BrokerUnavailable,
    CheckpointMismatch,
    ClosedError,
    CommitRefused,
    ConfigError,
    Fenced,
    IncompleteChangeSet,
    KeyGroupMismatch,
    OverlappingTasks,
)
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Producer
from statelog.log import Log
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.epoch import TaskGrant, resume_grant
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.schemas.key_groups import key_group_of
from statelog.schemas.ledger.handle import Handle
from tests.support.processes.starts import quick_start
from tests.support.rigs.log import LogRig, TwinRig, real_rig
from tests.support.services.broker import Broker

SMALL = WriterSettings(
    in_flight_bytes_max=512, _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=64, chunk_bytes=64)
)


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    """Yield the producer of the process that the tasks run in."""
    made = log.kafka.producer()
    yield made
    made.close()


def run_task(producer: Producer, task: TaskGrant, slot: int, changes: Mapping[bytes, bytes]) -> Handle:
    """Run one attempt of a task that puts `changes`; return its handle."""
    writer = TaskWriter(producer, task, slot=slot)
    for key, value in changes.items():
        writer.put(key, value)
    return writer.finish()


def split_keys(log: Log, count: int = 60) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return changes for two tasks that share no key group, each in all partitions."""
    parts: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
    for i in range(count):
        key = b"key-%d" % i
        parts[key_group_of(key, log.descriptor.key_type, log.descriptor.key_groups) % 2][key] = b"%d" % i
    return parts


def test_the_winners_of_a_checkpoint_are_one_commit(rig: LogRig, log: Log, producer: Producer) -> None:
    """Two tasks are one commit: readers see nothing before it and everything after it."""
    even, odd = split_keys(log)
    with Coordinator(log, "c") as coordinator:
        task = coordinator.task(1)
        handles = [run_task(producer, task, 0, even), run_task(producer, task, 1, odd)]
        assert rig.state() == {}
        committed = coordinator.commit(handles, {"offset": "60"}, checkpoint_id=1)

    assert committed.metadata == {"offset": "60"}
    assert rig.state() == even | odd


def test_losers_and_zombies_are_never_listed(rig: LogRig, log: Log, producer: Producer) -> None:
    """An attempt that lost, one that never ended, and one that writes on after the commit leave no trace."""
    even, odd = split_keys(log)
    with Coordinator(log, "c") as coordinator:
        task = coordinator.task(1)
        run_task(producer, task, 10, dict.fromkeys(even, b"loser"))
        zombie = TaskWriter(producer, task, slot=11, settings=SMALL)
        for key in odd:
            zombie.put(key, b"zombie")
        handles = [run_task(producer, task, 12, even), run_task(producer, task, 13, odd)]
        coordinator.commit(handles, checkpoint_id=1)
        for key in even:
            zombie.put(key, b"zombie")
        late = zombie.finish()
        with pytest.raises(CheckpointMismatch):
            coordinator.commit([late], checkpoint_id=2)
        coordinator.commit([run_task(producer, coordinator.task(2), 14, {b"key-0": b"second"})], checkpoint_id=2)

    assert rig.state() == {**even, **odd, b"key-0": b"second"}


def test_a_task_that_began_before_the_last_commit_is_refused(log: Log, producer: Producer) -> None:
    """A handle that continues an older checkpoint is refused, since its chunks may lie below the committed position."""
    even, odd = split_keys(log)
    with Coordinator(log, "c") as coordinator:
        early = coordinator.task(2)
        coordinator.commit([run_task(producer, coordinator.task(1), 0, even)], checkpoint_id=1)
        with pytest.raises(CheckpointMismatch):
            coordinator.commit([run_task(producer, early, 1, odd)], checkpoint_id=2)
        with pytest.raises(CheckpointMismatch):
            coordinator.task(1)


def test_tasks_in_one_key_group_are_refused_unless_keys_are_unique(rig: LogRig, log: Log, producer: Producer) -> None:
    """Tasks in one key group are refused unless keys are unique: the order between two tasks is arbitrary."""
    with Coordinator(log, "c") as coordinator:
        task = coordinator.task(1)
        all_keys = [b"key-%d" % i for i in range(60)]
        one = run_task(producer, task, 0, dict.fromkeys(all_keys[::2], b"one"))
        two = run_task(producer, task, 1, dict.fromkeys(all_keys[1::2], b"two"))
        with pytest.raises(OverlappingTasks, match="key group"):
            coordinator.commit([one, two], checkpoint_id=1)
        coordinator.commit([one, two], checkpoint_id=1, unique_keys=True)

    assert rig.state() == dict.fromkeys(all_keys[::2], b"one") | dict.fromkeys(all_keys[1::2], b"two")


def test_the_checkpoint_is_that_of_the_handles(log: Log, producer: Producer) -> None:
    """Without an id the checkpoint is the tasks' one, or without any handle the one after the last."""
    with Coordinator(log, "c") as coordinator:
        assert coordinator.commit(metadata={"offset": 1}).checkpoint.id == 1
        handles = [run_task(producer, coordinator.task(7), 0, {b"k": b"v"})]
        assert coordinator.commit(handles).checkpoint.id == 7
        assert coordinator.task().checkpoint_id == 8
        for checkpoint_id in (7, 0, True):
            with pytest.raises(CheckpointMismatch):
                coordinator.task(checkpoint_id)


def test_one_handle_passed_twice_is_refused(log: Log, producer: Producer) -> None:
    """One handle passed twice is refused: two change sets of one number in one commit could not be told apart."""
    with Coordinator(log, "c") as coordinator:
        handle = run_task(producer, coordinator.task(1), 0, {b"k": b"v"})
        with pytest.raises(OverlappingTasks, match="same number"):
            coordinator.commit([handle, handle], checkpoint_id=1, unique_keys=True)
        coordinator.commit([handle], checkpoint_id=1)


def zero() -> bytes:
    """Return no salt: the slot alone is the number, as where the random bits coincide."""
    return bytes(16)


def test_a_slot_that_is_given_again_loses_nothing(rig: LogRig, log: Log, producer: Producer) -> None:
    """A number that two checkpoints of one epoch share stands for two change sets, each in its position."""
    expected: dict[bytes, bytes] = {}
    with Coordinator(log, "c") as coordinator:
        for checkpoint_id in (1, 2, 3):
            writer = Environment(nonce=zero).run(TaskWriter, producer, coordinator.task(checkpoint_id), slot=0)
            for i in range(30):
                key = b"%d-%d" % (checkpoint_id, i)
                writer.put(key, b"v")
                expected[key] = b"v"
            coordinator.commit([writer.finish()], checkpoint_id=checkpoint_id)

    assert rig.state() == expected


def test_two_attempts_in_one_slot_do_not_mix(rig: LogRig, log: Log, producer: Producer) -> None:
    """A loser in the winner's slot that writes between the winner's chunks does not mix with them."""
    even, _ = split_keys(log)
    with Coordinator(log, "c") as coordinator:
        task = coordinator.task(1)
        loser = TaskWriter(producer, task, slot=0, settings=SMALL)
        winner = TaskWriter(producer, task, slot=0, settings=SMALL)
        for key, value in even.items():
            loser.put(key, b"loser")
            winner.put(key, value)
        loser.finish()
        coordinator.commit([winner.finish()], checkpoint_id=1)

    assert rig.state() == even


@pytest.mark.parametrize("slot", [-1, 1 << 31])
def test_a_slot_out_of_range_is_refused(log: Log, producer: Producer, slot: int) -> None:
    """A slot that does not fit above the random bits is refused before anything is written."""
    with Coordinator(log, "c") as coordinator, pytest.raises(ConfigError):
        TaskWriter(producer, coordinator.task(1), slot=slot)


def test_a_task_without_changes_and_a_quiet_checkpoint(rig: LogRig, log: Log, producer: Producer) -> None:
    """A task without changes is fine, and so is a checkpoint of nothing but metadata."""
    with Coordinator(log, "c") as coordinator:
        coordinator.commit([run_task(producer, coordinator.task(1), 0, {})], {"offset": "1"}, checkpoint_id=1)
        coordinator.commit([], {"offset": "2"}, checkpoint_id=2)
    with rig.open() as again, Coordinator(again, "c", expect=2) as coordinator:
        assert coordinator.last_commit is not None
        assert coordinator.last_commit.metadata == {"offset": "2"}


def test_a_task_refuses_partitions_that_the_coordinator_did_not_open(log: Log, producer: Producer) -> None:
    """A task refuses a change for a partition that the coordinator did not open, before anything is sent."""
    with Coordinator(log, "c", partitions=[0]) as coordinator:
        writer = TaskWriter(producer, coordinator.task(1), slot=0)
        with pytest.raises(KeyGroupMismatch):
            writer.append_batch(pa.table({"key": [b"key-%d" % i for i in range(60)], "value": [b"v"] * 60}))


def test_a_task_writer_writes_one_change_set_in_one_thread(log: Log, producer: Producer) -> None:
    """After finish, and from another thread, a task writer refuses everything."""
    found: list[BaseException] = []

    def intrude(writer: TaskWriter) -> None:
        try:
            writer.put(b"k", b"v")
        except ClosedError as error:
            found.append(error)

    with Coordinator(log, "c") as coordinator:
        writer = TaskWriter(producer, coordinator.task(1), slot=0)
        thread = threading.Thread(target=intrude, args=(writer,))
        thread.start()
        thread.join()
        writer.finish()
        with pytest.raises(ClosedError):
            writer.put(b"k", b"v")
        with pytest.raises(ClosedError):
            writer.finish()

    assert len(found) == 1


class FailingProducer:
    """A producer that refuses the second record, like one whose client has just died."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent = 0

    def __getattr__(self, name: str) -> object:
        """Return every other attribute of the producer."""
        return getattr(self._producer, name)

    def send(self, *args: object) -> object:
        """Queue a record, but not the second."""
        self._sent += 1
        if self._sent == 2:
            raise BrokerUnavailable("the producer is over")
        return self._producer.send(*args)  # type: ignore[arg-type]  # passed on as they came


def test_a_task_that_failed_half_way_gives_no_handle(log: Log, producer: Producer) -> None:
    """A task that failed half way gives no handle: records in flight are lost with the task writer."""
    with Coordinator(log, "c") as coordinator:
        failing = cast("Producer", FailingProducer(producer))
        writer = TaskWriter(failing, coordinator.task(1), slot=0)
        for i in range(60):
            writer.put(b"key-%d" % i, b"v")
        with pytest.raises(BrokerUnavailable):
            writer.finish()
        with pytest.raises(ClosedError):
            writer.finish()


def test_a_new_coordinator_fences_the_old_one(rig: LogRig, log: Log, producer: Producer) -> None:
    """A new coordinator fences the old one, which learns it: its winners are void, and its tasks change nothing."""
    even, odd = split_keys(log)
    old = Coordinator(log, "c")
    old_task = old.task(1)
    handle = run_task(producer, old_task, 0, even)
    with rig.open() as other, Coordinator(other, "c") as new:
        with pytest.raises(Fenced):
            old.commit([handle], checkpoint_id=1)
        with pytest.raises(ClosedError):
            old.commit([handle], checkpoint_id=1)
        old.close()
        run_task(producer, old_task, 1, dict.fromkeys(odd, b"zombie"))
        new.commit([run_task(producer, new.task(1), 0, odd)], checkpoint_id=1)

    assert rig.state() == odd


def test_a_later_coordinator_adopts_what_tasks_of_an_earlier_one_wrote(
    rig: LogRig, log: Log, producer: Producer
) -> None:
    """A later coordinator commits handles that a job stored earlier, after it found their chunks."""
    even, odd = split_keys(log)
    with Coordinator(log, "c") as old:
        kept = [run_task(producer, old.task(1), i, part).to_bytes() for i, part in enumerate((even, odd))]
    with rig.open() as again, Coordinator(again, "c", expect=0) as new:
        new.commit([Handle.from_bytes(data) for data in kept], checkpoint_id=1)

    assert rig.state() == even | odd


@pytest.mark.parametrize("rig", ["twin"], indirect=True)  # A real broker does not lose its tail on demand.
def test_an_adopted_handle_whose_chunks_are_gone_is_not_committed(rig: LogRig, log: Log, producer: Producer) -> None:
    """An adopted handle whose chunks are lost is not committed: the lost tail is found before the commit."""
    assert isinstance(rig, TwinRig)
    even, _ = split_keys(log)
    with Coordinator(log, "c") as old:
        kept = run_task(producer, old.task(1), 0, even)
    for entry in kept.entries:
        rig.cluster.overwrite(log.data_topic, entry.partition, entry.first_offset, b"another")
    with rig.open() as again, Coordinator(again, "c") as new:
        with pytest.raises(IncompleteChangeSet):
            new.commit([kept], checkpoint_id=1)
        new.commit([], checkpoint_id=1)

    assert rig.state() == {}


def test_another_process_of_the_job_commits_under_the_grant(rig: LogRig, log: Log, producer: Producer) -> None:
    """Another process of the job resumes the grant without an Open; the first one is stale, its commit refused."""
    even, odd = split_keys(log)
    with Coordinator(log, "c") as planning, rig.open() as other:
        grant = pickle.loads(pickle.dumps(planning.grant))
        with Coordinator(other, "c", grant=grant) as committing:
            assert committing.grant == planning.grant
            committing.commit([run_task(producer, planning.task(1), 0, even)], checkpoint_id=1)
            with pytest.raises(CommitRefused, match="continue"):
                planning.commit([run_task(producer, planning.task(2), 1, odd)], checkpoint_id=2)
            committing.commit([run_task(producer, committing.task(2), 2, odd)], checkpoint_id=2)

    assert rig.state() == even | odd


def test_the_last_commits_of_all_writers(rig: LogRig, log: Log) -> None:
    """Any process reads the last commits of all writers from the log, also fenced, but not finally ended ones."""
    assert log.commits() == {}
    for name, partition, final in (("a", 0, False), ("b", 1, True), ("c", 0, False)):
        with Writer(log, name, partitions=[partition]) as writer:
            writer.commit({"of": name}, checkpoint_id=1, final=final)

    with rig.open() as other:
        assert {name: commit.metadata for name, commit in other.commits().items()} == {
            "a": {"of": "a"},
            "c": {"of": "c"},
        }


def test_a_grant_that_is_over_is_not_resumed(rig: LogRig, log: Log) -> None:
    """A grant that a writer fenced or a final commit ended is not resumed: resuming is refused, not only the commit."""
    with Coordinator(log, "c") as coordinator:
        grant = coordinator.grant
        with rig.open() as other, Writer(other, "x", partitions=[0]), pytest.raises(Fenced):
            resume_grant(log, grant)
    with rig.open() as other, Coordinator(other, "c") as coordinator:
        coordinator.commit([], checkpoint_id=1, final=True)
        with pytest.raises(Fenced):
            resume_grant(other, coordinator.grant)
        with pytest.raises(ClosedError, match="final"):
            coordinator.commit([], checkpoint_id=2)


def work(bootstrap: str, task_bytes: bytes, slot: int, changes: dict[bytes, bytes]) -> bytes:
    """Run a task in another process, with nothing but the brokers and the pickled task grant; return its handle."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": bootstrap}))
    producer = kafka.producer()
    try:
        return pickle.dumps(run_task(producer, pickle.loads(task_bytes), slot, changes))
    finally:
        producer.close()
        kafka.close()


@pytest.mark.broker
def test_tasks_in_other_processes(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Grants and handles travel pickled; two other processes write, the coordinator commits both."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path)
    with (
        rig.create() as log,
        Coordinator(log, "c") as coordinator,
        quick_start().Pool(2) as pool,
    ):
        parts = split_keys(log)
        for checkpoint_id in (1, 2):
            task = pickle.dumps(coordinator.task(checkpoint_id))
            jobs = [(broker.bootstrap, task, slot, part) for slot, part in enumerate(parts)]
            handles = [pickle.loads(data) for data in pool.starmap(work, jobs, chunksize=1)]
            coordinator.commit(handles, checkpoint_id=checkpoint_id)

    assert rig.state() == parts[0] | parts[1]


def test_closing_a_coordinator_is_idempotent(rig: LogRig, log: Log) -> None:
    """Closing a coordinator is idempotent and warns of nothing: it holds no changes."""
    coordinator = Coordinator(log, "c")
    coordinator.commit([], checkpoint_id=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coordinator.close()
        coordinator.close()

    with rig.open() as again, Coordinator(again, "c", expect=1):
        pass
