"""Local copies of change sets: a recovery reads them if all are there, and their failures cost nothing else."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import Corrupt, NotFound, PersistFailed, UnknownFormat
from statelog.kafka.port import OffsetRange, Reader, Record
from statelog.log import Log
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.reading.local_copy import LocalCopy, LocalCopyReader
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.replay_plan import ReplayPlan, plan_replay
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Fate, SendAttempt
from statelog.testing.kafka import MemoryKafka, MemoryReader
from tests.support.rigs.log import TwinRig, real_rig, twin_rig, where_at
from tests.support.samples.chunks import mutations
from tests.support.services.broker import Broker
from tests.support.told import told

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")


class _Uncommitted(MemoryReader):
    committed: Mapping[int, int]

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield records behind the commits, as every client checks them, and no tail."""
        is_behind = all(start >= self.committed.get(partition, 0) for partition, (start, _) in ranges.items())
        assert is_behind, "the tail was read from Kafka"
        return super().read(ranges, stall_timeout_s=stall_timeout_s)


class LedgerOnly(MemoryKafka):
    """A view of a cluster through which no tail can be read."""

    def __init__(self, cluster: MemoryCluster, committed: Mapping[int, int]) -> None:
        super().__init__(cluster=cluster)
        self.committed = committed

    def reader(self, topic: str) -> MemoryReader:
        """Return a reader of the ledger, or of what no commit lists."""
        if topic.endswith(".ledger"):
            return super().reader(topic)
        reader = _Uncommitted(self, topic)
        reader.committed = self.committed
        return reader


class Fates:
    """Fates of the next chunks."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the next one in the list."""
        return self.fates.pop(0) if self.fates and not attempt.topic.endswith(".ledger") else Fate.DELIVER


class World:
    """A log, a directory for local copies, and recoveries that use it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults = Fates()
        self.rig: TwinRig = twin_rig("l", self.faults)
        self.rig.create(partitions=2, key_groups=4).close()
        self.cluster = self.rig.cluster
        self.now_s = 0.0

    def clock(self) -> float:
        """Return a time that advances by a second at every call."""
        self.now_s += 1.0
        return self.now_s

    def writer(self, log: Log, name: str = "w", bytes_max: int = 1 << 30) -> Writer:
        """Return a writer that stores copies, in many small chunks."""
        settings = WriterSettings(
            local_copies=self.directory,
            local_copies_bytes_max=bytes_max,
            _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=256, chunk_bytes=64),
        )
        return Environment(clock=self.clock).run(Writer, log, name, settings=settings)

    def state(self) -> dict[bytes, bytes]:
        """Return the state, recovered from local copies, or from Kafka with a warning."""
        with self.rig.open() as log:
            return recover(log, settings=RecoverySettings(local_copies=self.directory)).to_dict()

    def local_state(self) -> dict[bytes, bytes]:
        """Return the state, recovered from local copies alone."""
        with self.rig.open() as log:
            committed = log.describe().state.committed_positions
        kafka, store = LedgerOnly(self.cluster, committed), self.rig.store()
        with Log.open("l", where_at(kafka, store)) as log:
            return recover(log, settings=RecoverySettings(local_copies=self.directory)).to_dict()

    def files(self) -> list[str]:
        """Return the files of the directory, as change-set number and kind."""
        return sorted(f"{int(path.stem)}{path.suffix}" for path in self.directory.rglob("*.*"))

    def plan(self) -> ReplayPlan:
        """Return a plan of all commits."""
        with self.rig.open() as log, log.replay() as ledger:
            contents = [one.contents for one in ledger.commits(log.ledger.end())]
        return plan_replay(contents, range(2))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a log without any change."""
    return World(tmp_path / "copies")


@pytest.fixture
def log(world: World) -> Iterator[Log]:
    """Yield the log, opened."""
    with world.rig.open() as opened:
        yield opened


def fill(writer: Writer, first: int, count: int) -> None:
    """Append changes over few keys, some of them deletes."""
    for i in range(first, first + count):
        key = b"%d" % (i % 7)
        writer.delete(key) if i % 5 == 4 else writer.put(key, b"value %d" % i)


def no_kafka() -> Reader:
    """Raise, for callers that must not need Kafka."""
    raise AssertionError("the tail was read from Kafka")


def open_files() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_a_whole_tail_is_read_locally(world: World, log: Log) -> None:
    """Over several incarnations, checkpoints and change sets the copies give the very state that Kafka gives."""
    for life in range(3):
        with world.writer(log) as writer:
            fill(writer, life * 100, 30)
            writer.next_sequence_number()
            fill(writer, life * 100 + 30, 30)
            writer.persist(life * 10 + 1)
            fill(writer, life * 100 + 60, 30)
            writer.commit(checkpoint_id=life * 10 + 2)

    assert world.local_state() == world.rig.state() != {}
    settings = RecoverySettings(local_copies=world.directory)
    for chosen, expected in ((settings, True), (RecoverySettings(), False)):
        recovery = recover(log, settings=chosen)
        recovery.to_arrow()
        assert recovery.statistics().tail_is_local is expected
    assert not [name for name in world.files() if name.endswith(".partial")]


def test_one_missing_copy_is_all_from_kafka(world: World, log: Log) -> None:
    """Without one of the copies all is read from Kafka, with a warning."""
    with world.writer(log) as writer:
        fill(writer, 0, 20)
        writer.commit(checkpoint_id=1)
        fill(writer, 20, 20)
        writer.commit(checkpoint_id=2)
    next(world.directory.rglob("*.copy")).unlink()

    with told("no local copy"):
        assert world.state() == world.rig.state()


def test_a_recovery_without_a_tail_asks_for_no_copies(world: World) -> None:
    """A recovery without a tail reads no copies and warns of nothing."""
    assert world.state() == {}


@pytest.mark.usefixtures("busy_ledger")
def test_no_damage_of_a_copy_passes_unseen(world: World, log: Log) -> None:
    """Every flipped byte, every cut and every byte more makes a copy unusable as a whole."""
    with world.writer(log) as writer:
        writer.put(b"k", b"v")
        writer.put(b"l", b"w")
        writer.commit(checkpoint_id=1)
    plan = world.plan()
    (path,) = world.directory.rglob("*.copy")
    whole = path.read_bytes()
    LocalCopyReader(world.directory, "l", plan, no_kafka).close()
    for damaged in mutations(whole):
        path.write_bytes(damaged)
        with pytest.raises((Corrupt, UnknownFormat, NotFound)):
            LocalCopyReader(world.directory, "l", plan, no_kafka)
    with told("from Kafka"):
        assert world.state() == {b"k": b"v", b"l": b"w"}


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("shift", [0, 1])
def test_a_copy_of_something_else_is_not_used(world: World, log: Log, shift: int) -> None:
    """A whole and undamaged copy of other chunks at these offsets, or of these at others, is not used."""
    with world.writer(log) as writer:
        for i in range(1, 3):
            writer.put(b"k", b"%d" % i)
            writer.commit(checkpoint_id=i)
    plan = world.plan()
    attempt = next(world.directory.rglob("*.copy")).parent
    ((partition, listed),) = plan.listed.items()
    first, second = (record.value for record in world.cluster.records("l", partition))
    forged = LocalCopy(attempt, 1)
    forged.add(partition, first if shift else second)
    forged.complete({partition: [min(entry.first_offset for entry in listed) + shift]})

    with pytest.raises(Corrupt, match="not the change set"):
        LocalCopyReader(world.directory, "l", plan, no_kafka)


def test_a_local_error_never_fails_the_durable_path(world: World, log: Log) -> None:
    """A local error never fails the durable path: a full disk is remembered and counted, and the commit holds.

    A recovery reads Kafka.
    """
    with world.writer(log) as writer:
        fill(writer, 0, 20)
        writer.commit(checkpoint_id=1)
        (attempt,) = world.directory.glob("*/*/*")
        for path in attempt.iterdir():
            path.unlink()
        attempt.rmdir()
        attempt.write_bytes(b"a file where the directory was")
        fill(writer, 20, 20)
        writer.commit(checkpoint_id=2)
        assert writer.statistics().local_copy_failures == 1

    with told():
        assert world.state() == world.rig.state()


@pytest.mark.usefixtures("busy_ledger")
def test_copies_are_for_this_user_only(world: World, log: Log) -> None:
    """Copies, state in the clear, are for this user only: 0600 in 0700 directories, whatever the umask."""
    old = os.umask(0)
    try:
        with world.writer(log) as writer:
            writer.put(b"a", b"secret")
            writer.commit(checkpoint_id=1)
    finally:
        os.umask(old)
    made = list(world.directory.rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}


def test_copies_are_whole_at_persist(world: World, log: Log) -> None:
    """The durable change set makes the copy, not the confirm: a later incarnation that adopts the handle has it."""
    with world.writer(log) as writer:
        fill(writer, 0, 20)
        handle = writer.persist(1).result()
        fill(writer, 20, 20)
        assert world.files() == ["1.copy", "2.partial"]
    assert world.files() == ["1.copy"]
    with world.rig.open() as again, world.writer(again) as later:
        later.adopt(handle)

    assert world.local_state() == world.rig.state() != {}


@pytest.mark.usefixtures("busy_ledger")
def test_an_aborted_checkpoint_loses_its_copies(world: World, log: Log) -> None:
    """Reset drops the copies of the last checkpoint and its predecessors, and none of history.

    It does so for the last checkpoint only.
    """
    with world.writer(log) as writer:
        fill(writer, 0, 10)
        writer.commit(checkpoint_id=1)
        fill(writer, 10, 10)
        writer.persist(2).result()
        fill(writer, 20, 10)
        writer.persist(3).result()
        writer.reset(2)
        assert world.files() == ["1.copy", "2.copy", "3.copy"]
        writer.reset(3)
        assert world.files() == ["1.copy"]
        writer.commit(checkpoint_id=4)

    with told():
        assert world.state() == world.rig.state()


def test_truncation_drops_copies_of_history_only(world: World, log: Log) -> None:
    """Truncation drops copies of history only: a checkpoint that is yet to be confirmed retains its copy."""
    with world.writer(log) as writer:
        fill(writer, 0, 10)
        writer.commit(checkpoint_id=1)
        fill(writer, 10, 10)
        handle = writer.persist(2).result()
        writer.truncate(writer.next_sequence_number())
        assert world.files() == ["2.copy"]
        writer.confirm(handle)
        writer.truncate(writer.next_sequence_number())
        assert world.files() == []


@pytest.mark.usefixtures("busy_ledger")
def test_copies_have_a_bound(world: World, log: Log) -> None:
    """Above the bound the oldest copies go, earlier incarnations' first; another writer's stay."""
    with world.writer(log, "other") as other:
        fill(other, 0, 10)
        other.commit(checkpoint_id=1)
    for life in range(3):
        with world.writer(log, bytes_max=20_000) as writer:
            for i in range(10):
                fill(writer, i, 4)
                writer.commit(checkpoint_id=life * 100 + i + 1)
        mine = list((world.directory / "l" / "w").rglob("*.copy"))
        assert len(mine) == 4  # Each counts a block of 4 KiB.
        newest = max((world.directory / "l" / "w").iterdir(), key=lambda path: path.name)
        assert (newest / f"{10:020d}.copy").exists()

    assert len(list((world.directory / "l" / "other").rglob("*.copy"))) == 1
    assert len(list((world.directory / "l" / "w").iterdir())) == 1, "an epoch's directory is deleted with its last copy"


def test_many_change_sets_hold_few_files(world: World, log: Log) -> None:
    """Many change sets hold few open files, however many are in flight or read: a process has a limit of open files."""
    before = open_files()
    with world.writer(log) as writer:
        world.faults.fates = [Fate.DELAY] * 100
        for i in range(100):
            writer.put(b"%d" % i, b"v")
            writer.persist(i + 1)
        assert open_files() - before < 10
        world.cluster.release()
        writer.commit(checkpoint_id=101)
    with closing(LocalCopyReader(world.directory, "l", world.plan(), no_kafka)) as reader:
        assert open_files() - before < 10
        ranges = {partition: OffsetRange(0, 1_000) for partition in range(2)}
        assert sum(1 for _ in reader.read(ranges, stall_timeout_s=1)) == 100
        assert open_files() - before < 10

    assert open_files() <= before


def test_a_copy_that_goes_away_costs_nothing(world: World, log: Log) -> None:
    """A copy that a writer drops or cuts during a read costs nothing: the rest comes from Kafka, each chunk once."""
    with world.writer(log) as writer:
        for i in range(20):
            writer.put(b"%d" % i, b"v")
            writer.commit(checkpoint_id=i + 1)
    plan = world.plan()
    ranges = {partition: OffsetRange(*plan.ranges[partition][0]) for partition in plan.ranges}
    with (
        closing(
            LocalCopyReader(world.directory, "l", plan, lambda: MemoryKafka(cluster=world.cluster).reader("l"))
        ) as reader,
        closing(MemoryKafka(cluster=world.cluster).reader("l")) as kafka,
    ):
        found: list[Record] = []
        for record in reader.read(ranges, stall_timeout_s=1):
            found.append(record)
            if len(found) == 3:
                for i, path in enumerate(world.directory.rglob("*.copy")):
                    path.unlink() if i % 2 else path.write_bytes(b"")
        assert sorted(found) == sorted(kafka.read(ranges, stall_timeout_s=1))


def test_a_failed_change_set_leaves_no_copy(world: World, log: Log) -> None:
    """A failed change set leaves no copy after close; the next incarnation removes half copies of an earlier one."""
    with world.writer(log) as writer:
        world.faults.fates = [Fate.SKIP]
        with pytest.raises(PersistFailed):
            fill(writer, 0, 10)
            writer.persist(1).result()
        left = world.directory / "l" / "w" / "0-dead" / f"{9:020d}.partial"
        left.parent.mkdir()
        left.write_bytes(b"half")
    assert world.files() == ["9.partial"]
    with world.rig.open() as again, world.writer(again):
        assert world.files() == []


@pytest.mark.broker
def test_copies_on_a_real_broker(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """On a real broker, with its offsets and gaps, the copies hold the whole tail without a warning."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    settings = WriterSettings(
        local_copies=tmp_path / "c", _tuning=WriterTuning(roll_rows=2, list_bytes=64, roll_bytes=256, chunk_bytes=64)
    )
    rig.create().close()
    for life in range(2):
        with rig.open() as log, Writer(log, "w", settings=settings) as writer:
            fill(writer, life, 50)
            writer.commit(checkpoint_id=life * 2 + 1)
            fill(writer, life + 50, 50)
            writer.persist(life * 2 + 2).result()
    with rig.open() as log:
        state = recover(log, settings=RecoverySettings(local_copies=tmp_path / "c")).to_dict()

    assert state == rig.state() != {}
