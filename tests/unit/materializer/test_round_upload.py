"""Damaged uploads and an unpublishable group offset do not end the daemon."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import (
    BrokerUnavailable,
    ConfigError,
    CorruptManifest,
    StatelogError,
    StorageFull,
    StoreUnavailable,
    UnsafeStore,
)
from statelog.materializer.events import EventKind
from statelog.materializer.outcome import CompletedRound, LostRound
from statelog.materializer.round import run_round
from statelog.schemas.names import MANIFESTS
from statelog.store import run_writer
from statelog.testing.store import MemoryDisk
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, settings_for, state_of


def _flip(disk: MemoryDisk, path: str) -> None:
    disk.flip_byte(path, 40)


def _cut(disk: MemoryDisk, path: str) -> None:
    disk.truncate(path, 40)


def _drop(disk: MemoryDisk, path: str) -> None:
    disk.remove(path)


@pytest.mark.parametrize("damage", [_flip, _cut, _drop])
def test_an_upload_that_did_not_arrive_whole_is_made_anew(
    damage: Callable[[MemoryDisk, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged, short or missing upload fails its round, since no manifest names it. The next round succeeds."""
    bench = DaemonBench(tmp_path)
    bench.twin.write({b"a": b"1"})
    upload, turns = bench.log.store.upload, itertools.count()

    def damaged(local: Path, path: str) -> None:
        upload(local, path)
        if next(turns) == 0:
            damage(bench.twin.disk, f"log/{path}")

    monkeypatch.setattr(bench.log.store, "upload", damaged)
    bench.run(until_s=150)
    assert bench.kinds == ["round-failed", "round-completed", "stopped"]
    failed = next(event for event in bench.events if event.kind is EventKind.ROUND_FAILED)
    assert isinstance(failed.error, StoreUnavailable)
    assert "did not arrive whole" in failed.error.message
    assert failed.error.facts["path"]
    assert state_of(bench.log) == bench.twin.model


@pytest.mark.parametrize("flipped", [b"a value that stands alone", b"PAR1"], ids=["page", "footer"])
def test_what_was_encoded_wrong_is_not_published(
    flipped: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrongly encoded file whose hash fits is not published: its widest row group and footer are decoded first."""
    file = run_writer._HashedFile  # pyright: ignore[reportPrivateUsage]  # the last place before bytes are hashed
    write, twin = file.write, TwinLog(partitions=1)
    twin.write({b"a": b"a value that stands alone", b"b": b"2"})

    def wrong(self: Any, data: bytes) -> int:
        at = bytes(data).find(flipped) if self.tell() else -1
        return write(self, bytes(data[: max(0, at)]) + b"?" + bytes(data[at + 1 :]) if at >= 0 else data)

    with monkeypatch.context() as patch:
        patch.setattr(file, "write", wrong)
        with pytest.raises(StoreUnavailable, match="did not arrive whole"):
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    assert twin.run_paths() == set()
    assert isinstance(twin.environment.run(run_round, twin.open(), settings_for(tmp_path)), CompletedRound)
    assert state_of(twin.open()) == twin.model


def test_an_upload_that_a_newer_winner_deleted_is_a_race_that_was_lost(tmp_path: Path) -> None:
    """A round whose upload a newer winner deleted has lost a race, and has not failed."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    log, stalled = twin.open(), twin.open()
    upload = stalled.store.upload

    def upload_and_stall(local: Path, path: str) -> None:
        upload(local, path)
        for turn in range(3):
            twin.write({b"b": str(turn).encode()})
            twin.environment.run(run_round, log, settings_for(tmp_path))

    stalled.store.upload = upload_and_stall  # type: ignore[method-assign] # the moment in question
    assert twin.environment.run(run_round, stalled, settings_for(tmp_path)) == LostRound(number=3)
    assert state_of(twin.open()) == twin.model


def test_a_round_for_which_the_store_has_no_room_leaves_it_as_it_was(tmp_path: Path) -> None:
    """A round that the store has no room for removes its uploads. Repeated tries would otherwise fill the store."""
    twin = TwinLog()
    log = twin.open()
    twin.write({b"k%d" % number: b"1" * 900 for number in range(24)})
    before = twin.disk.used_bytes()
    twin.disk.capacity_bytes = before + 10_000
    for _ in range(3):
        with pytest.raises(StorageFull):
            twin.environment.run(run_round, log, settings_for(tmp_path, max_run_bytes=1, threads=1))
        assert twin.disk.used_bytes() == before
    twin.disk.capacity_bytes = None
    assert isinstance(twin.environment.run(run_round, log, settings_for(tmp_path)), CompletedRound)
    assert state_of(twin.open()) == twin.model


def _damaged(twin: TwinLog) -> None:
    twin.disk.flip_byte(f"log/{MANIFESTS.path(2)}", -40)


def _overwriting(twin: TwinLog) -> None:
    twin.disk.honours_absence = False


@pytest.mark.parametrize(("happen", "error"), [(_damaged, CorruptManifest), (_overwriting, UnsafeStore)])
def test_a_round_that_fails_before_its_put_leaves_the_store_as_it_was(
    happen: Callable[[TwinLog], None], error: type[StatelogError], tmp_path: Path
) -> None:
    """A round that fails before its put removes its uploads. A restarting daemon would otherwise fill the store."""
    twin, settings = TwinLog(), settings_for(tmp_path, keep=3)
    for turn in range(3):
        twin.write({b"a": str(turn).encode()})
        twin.environment.run(run_round, twin.open(), settings)
    happen(twin)
    twin.write({b"a": b"later"})
    before = twin.run_paths()
    for _ in range(2):
        with pytest.raises(error):
            twin.environment.run(run_round, twin.open(), settings)
        assert twin.run_paths() == before


@pytest.mark.parametrize("error", [BrokerUnavailable, ConfigError])
def test_a_group_offset_that_cannot_be_published_fails_no_round(
    error: type[StatelogError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right on the group, rounds complete, clean up and truncate, and each reports the failure."""
    bench = DaemonBench(tmp_path, failures_tolerated=0)

    def refused(*_: object) -> None:
        raise error("publishing a group offset: GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(bench.log.kafka, "publish_offset", refused)
    for time_s in range(50, 350, 100):
        bench.at(time_s, lambda: bench.twin.write({b"a": b"1"}))
    bench.twin.write({b"a": b"0"})
    bench.run(until_s=320)
    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.unpublished) == (0, 4, 4)
    told = [event.facts["reason"] for event in bench.events if event.kind is EventKind.OFFSET_UNPUBLISHED]
    assert len(told) == 4
    assert "GROUP_AUTHORIZATION_FAILED" in told[0]
    assert bench.log.manifests.numbers() == [3, 4]
    assert bench.log.kafka.offsets(bench.log.ledger_topic, [0])[0].start > 0


def test_the_group_offset_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group offset is published last, after truncation and cleanup, since nothing else depends on it."""
    twin = TwinLog()
    log = twin.open()
    seen: list[int] = []
    publish = log.kafka.publish_offset

    def last(group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        seen.append(log.kafka.offsets(log.ledger_topic, [0])[0].start)
        publish(group, topic, partition, offset, metadata)

    monkeypatch.setattr(log.kafka, "publish_offset", last)
    for turn in range(3):
        twin.write({b"a": str(turn).encode()})
        assert isinstance(twin.environment.run(run_round, log, settings_for(tmp_path)), CompletedRound)
        assert seen[-1] == log.kafka.offsets(log.ledger_topic, [0])[0].start
    assert seen[-1] > 0
