"""A foreign or missing store is an error for rounds and readers, and Kafka is not truncated."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.environment import Environment
from statelog.errors import IdentityChanged, NotFound, StoreUnavailable
from statelog.log import Log, LogOptions, Where
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.names import MANIFESTS
from statelog.store.local import LocalStore
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, settings_for, where_at


class _Mount(NamedTuple):
    """A log whose directory lies on a volume that can be unmounted and mounted again."""

    log: Log
    root: Path
    scratch: Path

    def commit(self, checkpoint: int) -> None:
        with Writer(self.log, "writer") as writer:
            writer.put(b"key-%d" % checkpoint, b"value")
            writer.commit(checkpoint_id=checkpoint)

    def round(self) -> object:
        return run_round(self.log, settings_for(self.scratch))

    def unmount(self) -> None:
        """Leave an empty mount point."""
        self.root.rename(f"{self.root}.away")
        self.root.mkdir()

    def mount(self) -> None:
        self.root.rename(f"{self.root}.shadowed")
        Path(f"{self.root}.away").rename(self.root)

    def starts(self) -> list[int]:
        ledger = self.log.kafka.offsets(self.log.ledger_topic, [0])[0].start
        return [ledger, *(there.start for there in self.log.data_offsets().values())]


@pytest.fixture
def mount(tmp_path: Path) -> _Mount:
    """Return a log without a snapshot, whose volume is mounted."""
    root, scratch = tmp_path / "volume", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    log = Log.create(
        "log",
        where_at(MemoryKafka(cluster=MemoryCluster()), LocalStore(root, "log")),
        LogOptions(partitions=2),
    )
    return _Mount(log, root, scratch)


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_an_empty_directory_is_not_taken_for_a_log_without_a_snapshot(rounds: int, mount: _Mount) -> None:
    """An unmounted volume is not taken for a log without a snapshot, at any stage.

    Rounds and readers refuse and nothing is truncated. When it is mounted again, everything is there.
    """
    for checkpoint in range(1, rounds + 2):
        mount.commit(checkpoint)
        if checkpoint <= rounds:
            assert isinstance(mount.round(), CompletedRound)
    starts = mount.starts()
    mount.unmount()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the store is not there"):
            mount.round()
        with pytest.raises(StoreUnavailable, match="the store is not there"):
            recover(mount.log).to_dict()
    assert mount.starts() == starts
    assert not list(mount.root.rglob("*.avro"))
    mount.mount()
    assert len(recover(mount.log).to_dict()) == rounds + 1
    assert isinstance(mount.round(), CompletedRound)


@pytest.mark.parametrize("point", ["after-fold", "after-upload", "after-list", "after-win", "after-check"])
def test_a_directory_that_goes_away_in_mid_round_costs_no_record(point: str, mount: _Mount) -> None:
    """A directory that disappears at any step of a round costs no record.

    Kafka is not truncated for a manifest in an empty directory.
    """
    starts = mount.starts()

    def crash(name: str) -> None:
        if name == point:
            mount.unmount()

    with Writer(mount.log, "writer") as writer:
        for checkpoint in range(1, 4):
            writer.put(b"key-%d" % checkpoint, b"value")
            writer.commit(checkpoint_id=checkpoint)
        with suppress(StoreUnavailable):
            Environment(crash=crash).run(run_round, mount.log, settings_for(mount.scratch))
        writer.put(b"key-4", b"value")
        writer.commit(checkpoint_id=4)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the store is not there"):
            mount.round()
    assert mount.starts() == starts
    mount.mount()
    # Another process does this. This one may have put a manifest that the volume lacks, and keeps missing it.
    store = LocalStore(mount.root, "log")
    with Log.open("log", where_at(mount.log.kafka, store)) as log:
        assert len(recover(log).to_dict()) == 4


def test_nothing_is_truncated_once_the_directory_is_away(mount: _Mount) -> None:
    """A directory that disappears right before a due truncation, with the leases in it, stops the truncation."""
    for checkpoint in range(1, 3):
        mount.commit(checkpoint)
        mount.round()
    starts = mount.starts()

    def crash(name: str) -> None:
        if name == "after-drop":
            mount.unmount()

    mount.commit(3)
    with pytest.raises(StoreUnavailable, match="the store is not there"):
        Environment(crash=crash).run(run_round, mount.log, settings_for(mount.scratch))
    assert mount.starts() == starts
    mount.mount()
    mount.commit(4)
    mount.round()
    assert mount.starts() != starts, "the truncation was due"


def test_another_logs_directory_is_refused(mount: _Mount, tmp_path: Path) -> None:
    """A root URL that points to another cluster's log of the same name is refused."""
    (tmp_path / "other").mkdir()
    Log.create(
        "log",
        where_at(MemoryKafka(cluster=MemoryCluster(cluster_id="another")), LocalStore(tmp_path / "other", "log")),
        LogOptions(partitions=2),
    )
    mount.commit(1)
    mount.unmount()
    mount.root.rmdir()
    (tmp_path / "other").rename(mount.root)
    with pytest.raises(IdentityChanged, match="another log's"):
        mount.round()


def _back(twin: TwinLog) -> None:
    """Replace the directory with an older copy that lacks its newest manifest."""
    twin.disk.remove(f"log/{MANIFESTS.path(3)}")


def _emptied(twin: TwinLog) -> None:
    """Remove the manifests, and leave the descriptor."""
    for number in (2, 3):
        twin.disk.remove(f"log/{MANIFESTS.path(number)}")


@pytest.mark.parametrize("change", [_back, _emptied])
def test_a_newest_manifest_below_one_that_was_seen_is_not_believed(
    change: Callable[[TwinLog], None], tmp_path: Path
) -> None:
    """A store that went back below an observed manifest is refused by this process's rounds and readers.

    Nothing is truncated.
    """
    twin = TwinLog()
    log = twin.open()
    for turn in range(3):
        twin.write({b"a": str(turn).encode()})
        twin.environment.run(run_round, log, settings_for(tmp_path))
    start = log.kafka.offsets(log.ledger_topic, [0])[0].start
    change(twin)
    twin.write({b"a": b"later"}) if change is _back else None
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the store went back"):
            twin.environment.run(run_round, log, settings_for(tmp_path))
        with pytest.raises(StoreUnavailable, match="the store went back"):
            recover(log).to_dict()
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start == start


def test_a_daemon_without_its_volume_alarms_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """A missing volume is tolerated like any unavailable store. The age of unmaterialized changes grows meanwhile."""
    bench = DaemonBench(tmp_path, alarm_age_s=150.0, failures_tolerated=5)
    bench.twin.write({b"a": b"1"})
    bench.daemon.run_once()
    bench.twin.write({b"a": b"2"})
    away = {info.path: bench.twin.disk.get(info.path) for info in bench.twin.disk.files("log/")}
    for path in away:
        bench.twin.disk.remove(path)

    def mount() -> None:
        for path, data in away.items():
            bench.twin.disk.write(path, data, absent=True)

    ages: list[float] = []
    bench.at(250, lambda: ages.append(bench.daemon.statistics().age_s), mount)
    bench.run(until_s=350)
    assert bench.kinds[1:] == ["round-failed", "round-failed", "round-failed", "round-completed", "stopped"]
    assert ages[0] >= 250


def test_a_log_that_was_deleted_is_not_found(tmp_path: Path) -> None:
    """A round on a deleted log raises NotFound, so that nobody searches for damage."""
    twin = TwinLog()
    log = twin.open()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, log, settings_for(tmp_path))
    with twin.open() as other:
        Log.delete("log", Where(other.kafka, other.store))
    with pytest.raises(NotFound, match="it was deleted"):
        twin.environment.run(run_round, log, settings_for(tmp_path))


def test_nothing_goes_while_kept_manifests_are_of_no_one_chain(mount: _Mount) -> None:
    """Nothing is removed while a foreign manifest breaks the chain, however sound it is. Removal resumes after it."""
    settings = settings_for(mount.scratch, keep=3)
    for checkpoint in (1, 2):
        mount.commit(checkpoint)
        run_round(mount.log, settings)
    store, path = mount.log.store, MANIFESTS.path(1)
    own = mount.log.manifests.read(1)
    store.delete(path)
    store.put_if_absent(path, replace(own, nonce=bytes(16)).to_bytes())
    mount.commit(3)
    outcome = run_round(mount.log, settings)
    assert isinstance(outcome, CompletedRound)
    assert "manifests 1 and 2" in outcome.cleanup.held_back
    assert mount.starts() == [0, 0, 0]

    store.delete(path)
    store.put_if_absent(path, own.to_bytes())
    mount.commit(4)
    outcome = run_round(mount.log, settings)
    assert isinstance(outcome, CompletedRound)
    assert not outcome.cleanup.held_back
    assert mount.starts()[0] > 0


@pytest.mark.parametrize("point", ["after-win", "after-check", "after-drop", "after-truncate-data"])
@pytest.mark.parametrize("is_same_root", [True, False])
def test_a_log_that_was_made_anew_in_mid_round_loses_nothing(
    point: str, is_same_root: bool, mount: _Mount, tmp_path: Path
) -> None:
    """A round removes nothing of a log that was re-created meanwhile.

    Verifying what is retained may take an hour. Meanwhile the topic names and manifest numbers may belong to another
    log, at this root or at another one.
    """
    for checkpoint in range(1, 4):
        mount.commit(checkpoint)
        if checkpoint < 3:
            mount.round()
    (tmp_path / "other").mkdir()
    kafka = mount.log.kafka
    assert isinstance(kafka, MemoryKafka)
    where = where_at(kafka.join(), LocalStore(mount.root if is_same_root else tmp_path / "other", "log"))

    def make_anew() -> None:
        if is_same_root:
            Log.delete("log", where_at(kafka.join(), LocalStore(mount.root, "log")))
        else:
            kafka.delete_topic("log")
            kafka.delete_topic("log.ledger")
        anew = mount._replace(log=Log.create("log", where, LogOptions(partitions=2)))
        for checkpoint in range(1, 9):
            anew.commit(checkpoint)
            if is_same_root and checkpoint < 3:
                anew.round()

    def crash(name: str) -> None:
        if name == point:
            Environment().run(make_anew)

    with pytest.raises(IdentityChanged):
        Environment(crash=crash).run(run_round, mount.log, settings_for(mount.scratch))
    with Log.open("log", where) as log:
        assert log.manifests.numbers() == ([1, 2] if is_same_root else [])
        assert len(recover(log).to_dict()) == 8
