"""Streams against damage, full disks and vanishing readers: the state, a typed error, and nothing left behind."""

import gc
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import (
    ClosedError,
    ConfigError,
    Corrupt,
    CorruptRun,
    IdentityChanged,
    IncompleteChangeSet,
    Misuse,
    StatelogError,
    StorageFull,
    StoreUnavailable,
    UnknownFormat,
)
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.reading.plan import AtPosition
from statelog.recovery import stream as streams
from statelog.recovery.plan_reader import Phase
from statelog.recovery.progress import Monitor, Progress
from statelog.recovery.recover import Recovery, recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.recovery.stream import Portion
from statelog.schemas.ledger.place import Place
from statelog.store import run_reader
from statelog.store.disk.spill import SpillSegment
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryStore
from tests.support.rigs.history import HistoryTwins, Reader, history_rig
from tests.support.told import told

_KEYS = [b"key-%03d" % i for i in range(300)]
_PATIENCE_S = 60.0


class _Twins(HistoryTwins):
    """Two snapshots, of one run each that holds every key, and a tail; the log reaches back to the first one."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.settings = RecoverySettings(
            memory_bytes=64 * 1024,
            fold_bytes=64 * 1024,
            spill_directories=(directory,),
            _tuning=RecoveryTuning(segment_bytes=50_000),
        )
        with Writer(self.log, "w") as writer:
            for number in (1, 2):
                self.rig.commit(writer, number, [(key, b"%d" % number * 2000) for key in _KEYS])
                self.rig.snapshot(merge=True)
            self.rig.commit(writer, 3, [(key, b"tail" * 500) for key in _KEYS[::2]])

    def recover(self) -> Recovery:
        return recover(self.log, settings=self.settings)

    def assert_nothing_left(self) -> None:
        """Check that no lease, no file, no thread, and no open file of the spill directory is left."""
        assert list_leases(MemoryStore(self.disk, "rig")) == []
        assert list(self.directory.iterdir()) == []
        assert [thread for thread in threading.enumerate() if thread.name.startswith("statelog")] == []
        links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        assert [link for link in links if link.is_relative_to(self.directory)] == []


@pytest.fixture
def twins(tmp_path: Path) -> _Twins:
    """Return fresh twins, with a spill directory."""
    directory = tmp_path / "spill"
    directory.mkdir()
    return _Twins(directory)


# ---- readers that vanish


@pytest.mark.parametrize("waits", [False, True])
def test_a_reader_that_fails_leaves_nothing(twins: _Twins, *, waits: bool) -> None:
    """An error of the callback is raised unchanged, in the middle of the fetch or of the drain."""
    stream = twins.recover().stream()

    def fail(_: Portion) -> None:
        assert not waits or stream.wait_fetched(_PATIENCE_S)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stream.apply(fail)
    twins.assert_nothing_left()


def test_ctrl_c_leaves_nothing(twins: _Twins) -> None:
    """A follower that is interrupted while it waits for a commit ends with KeyboardInterrupt, and leaves nothing."""
    ctrl_c = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    stream = twins.recover().follow(poll_s=0.01)

    def interrupt(portion: Portion) -> None:
        if portion.cursor.is_complete:
            ctrl_c.start()

    with pytest.raises(KeyboardInterrupt):
        stream.apply(interrupt)
    ctrl_c.join()
    twins.assert_nothing_left()


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Monitor, "report"), (streams, "decode_frame"), (SpillSegment, "read"), (SpillSegment, "release")],
)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_portion_that_was_not_handed_out_comes_again(
    twins: _Twins, owner: Any, step: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A portion that Ctrl-C or a report's error kept from the reader comes again, in the middle of every other take."""
    work, calls = getattr(owner, step), count()

    def breaking(*args: Any) -> Any:
        done = work(*args)
        if next(calls) % 2 == 0:
            raise error
        return done

    reader = Reader()
    with twins.recover().stream() as stream:
        assert stream.wait_fetched(_PATIENCE_S)
        with monkeypatch.context() as broken:
            broken.setattr(owner, step, breaking)
            while not stream.has_ended:
                with suppress(error):
                    portion = stream.take()
                    if portion is not None:
                        reader.apply(portion)
    assert next(calls) > 2
    assert reader.state == twins.expected
    assert reader.cursor.is_complete


def test_a_stream_that_is_dropped_leaves_nothing(twins: _Twins) -> None:
    """A stream whose loop stops half way, and that nobody references, ends as if it had been closed."""
    recovery = twins.recover()
    for _ in recovery.stream():
        break
    gc.collect()
    recovery.close()  # This waits for the thread, which is ending.
    twins.assert_nothing_left()
    assert recovery.to_dict() == twins.expected


def test_a_recovery_that_is_left_closes_its_stream(twins: _Twins) -> None:
    """The context of a recovery closes its stream, which then says that it is closed."""
    with twins.recover() as recovery:
        stream = recovery.stream()
        stream.take()
        with pytest.raises(Misuse):
            recovery.stream()
        with pytest.raises(Misuse):
            recovery.to_dict()
    twins.assert_nothing_left()
    with pytest.raises(ClosedError):
        stream.take()
    with pytest.raises(ClosedError), stream.pending():
        pass


# ---- failures


def test_a_full_disk_is_told(twins: _Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full spill directory ends the stream with StorageFull, and nothing is left."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageFull) as caught:
        twins.recover().stream().apply(lambda _: None)
    assert (caught.value.facts["path"], caught.value.facts["code"]) == (str(twins.directory), "ENOSPC")
    assert "spill_directories" in caught.value.hint
    twins.assert_nothing_left()


def test_directories_that_cannot_be_used_leave_no_lease(twins: _Twins) -> None:
    """Unusable directories are ConfigError before the thread starts, and leave no lease."""
    twins.settings = replace(twins.settings, spill_directories=())
    with pytest.raises(ConfigError):
        twins.recover().stream()
    twins.assert_nothing_left()


def test_without_room_for_a_thread_there_is_no_lease(twins: _Twins) -> None:
    """A stream that could not start its thread leaves nothing, and no warning that it was not closed."""

    def full(_: object) -> None:
        raise RuntimeError("can't start new thread")

    recovery = Environment(start=full).run(twins.recover)
    with pytest.raises(RuntimeError):
        recovery.stream()
    twins.assert_nothing_left()


def _chunk_lost(twins: _Twins) -> None:
    record = twins.cluster.records("rig", 1)[-1]
    twins.cluster.overwrite("rig", 1, record.offset, b"a stranger's")


def _store_gone(twins: _Twins) -> None:
    twins.hooked(lambda method, path: Fault.BEFORE if method == "open" and path.startswith("runs/") else None)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(_chunk_lost, IncompleteChangeSet), (_store_gone, StoreUnavailable)],
)
def test_what_reading_raises_is_raised_to_the_reader(
    twins: _Twins, damage: Callable[[_Twins], None], kind: type[StatelogError]
) -> None:
    """The fetching thread's error is the stream's, and no part of the state came out before it."""
    damage(twins)
    seen: list[Portion] = []
    with pytest.raises(kind) as caught:
        twins.recover().stream().apply(seen.append)
    assert caught.value.hint
    assert seen == []
    twins.assert_nothing_left()


def _damage_end(twins: _Twins, snapshot: int) -> None:
    """Flip a bit in the last row group of a snapshot's run: all others are read before it."""
    run = twins.rig.manifests[snapshot].runs[0]
    twins.disk.flip_byte(f"rig/{run.path}", run.index.row_groups[-1].offset)


def test_a_snapshot_that_fails_half_way_is_gone_around(twins: _Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that fails half way is replaced by an older one and a longer tail; no row is repeated."""
    monkeypatch.setattr(run_reader, "PIECE_BYTES", 1)
    _damage_end(twins, 1)
    reader, expected = Reader(), twins.expected
    with told():
        recovery = twins.recover()
        with Writer(twins.log, "w") as writer:
            twins.rig.commit(writer, 4, [(b"a newer state", b"is another one")])
        twins.rig.snapshot()
        end = recovery.stream().apply(reader.apply)
    assert reader.state == expected
    assert [row[:3] for row in reader.rows] == sorted({row[:3] for row in reader.rows})
    assert (end.is_complete, recovery.plan.manifest_number, recovery.statistics().plans) == (True, 1, 2)
    twins.assert_nothing_left()


def test_a_state_without_a_way_around_says_how_far_it_went(twins: _Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a replacement a damaged run's error ends the stream, and the cursor says that the state is not whole."""
    monkeypatch.setattr(run_reader, "PIECE_BYTES", 1)
    _damage_end(twins, 1)
    twins.rig.drop(twins.rig.manifests[0])
    twins.rig.truncate(twins.rig.manifests[0])
    stream, reader = twins.recover().stream(), Reader()
    with told(), pytest.raises(CorruptRun), stream:
        for portion in stream:
            reader.apply(portion)
    assert not stream.cursor.is_complete
    assert set(reader.state) < set(twins.expected)
    twins.assert_nothing_left()


def test_a_target_that_moved_on_before_the_first_row(twins: _Twins) -> None:
    """A log that is truncated between plan and read costs a new plan, and the newer state comes out."""
    recovery, reader = twins.recover(), Reader()
    recovery.close()
    with Writer(twins.log, "w") as writer:
        twins.rig.commit(writer, 4, [(b"new", b"4")])
    twins.rig.snapshot(merge=True)
    for manifest in twins.rig.manifests[:2]:
        twins.rig.drop(manifest)
    twins.rig.truncate(twins.rig.manifests[0])
    end = recovery.stream().apply(reader.apply)
    assert reader.state == twins.expected
    assert end.position == recovery.position == twins.rig.end()


# ---- a checkpoint while draining


def test_what_is_pending_is_the_rest_and_outlives_the_stream(twins: _Twins) -> None:
    """Applied and pending changes add up to the state, at any moment, also after the stream was closed."""
    reader = Reader()
    stream = twins.recover().stream()
    assert stream.wait_fetched(_PATIENCE_S)
    taken: list[Portion] = []
    for portion in stream:
        taken.append(portion)
        reader.apply(portion)
        if len(taken) == 5:
            break
    with stream.pending() as pending:
        first = next(pending)
        assert first.cursor == taken[4].cursor == reader.cursor
        assert first.changes.equals(taken[4].changes)
        assert stream.cursor == taken[3].cursor
        stream.close()
        for rest in pending:
            reader.apply(rest)
    assert reader.cursor.is_complete
    assert reader.state == twins.expected
    twins.assert_nothing_left()


def test_a_place_is_of_one_log_and_one_format(twins: _Twins) -> None:
    """A cursor of another log, of a newer statelog, or in a foreign format raises an error of its own."""
    applied = twins.recover().stream().apply(lambda _: None)
    with pytest.raises(IdentityChanged):
        recover(history_rig(name="other", kafka=MemoryKafka(cluster=twins.cluster)).log, resume=applied)
    with pytest.raises(UnknownFormat):
        applied.from_json(applied.to_json().replace('"format": 2', '"format": 3'))
    first = json.loads(applied.to_json())
    first |= {"format": 1, "place": [applied.position, *first.pop("applied")]}
    assert applied.from_json(json.dumps(first)).applied == applied.applied._replace(place=Place(applied.position))
    whole = applied.to_json()
    absurd = [
        whole.replace('"key_groups": null', f'"key_groups": {groups}')
        for groups in ("[[0, 1e300]]", f"[[0, {1 << 62}]]")
    ]
    for text in ("", "{}", "[1]", "[" * 100_000, whole.replace("place", "plaice"), *absurd):
        with pytest.raises(Corrupt):
            applied.from_json(text)
    with pytest.raises(Misuse):
        recover(twins.log, resume=applied, key_groups=[1])
    with pytest.raises(Misuse):
        recover(twins.log, resume=applied, at=AtPosition(1))
    with pytest.raises(Misuse), recover(twins.log, resume=applied) as resumed:
        resumed.to_dict()


def test_progress_and_numbers_of_a_stream(twins: _Twins) -> None:
    """Reports come in the reader's thread and end with done; the numbers count the rows that came out."""
    seen: list[tuple[Progress, threading.Thread]] = []
    settings = replace(twins.settings, _tuning=RecoveryTuning(segment_bytes=50_000, progress_interval_s=0))
    recovery = recover(
        twins.log, settings=settings, on_progress=lambda report: seen.append((report, threading.current_thread()))
    )
    recovery.stream().apply(lambda _: None)
    assert {thread for _, thread in seen} == {threading.main_thread()}
    assert (seen[-1][0].phase, seen[-1][0].fraction) == (Phase.DONE, 1.0)
    numbers = recovery.statistics()
    assert (numbers.rows, numbers.run_rows, numbers.tail_changes) == (300, 300, 150)
