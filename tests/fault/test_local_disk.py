"""The local disk fails, or the process dies, at each step of a round or a target on it: no wrong file stays."""

import errno
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import rocksdict

from statelog.environment import Environment
from statelog.errors import StorageFull, StoreUnavailable
from statelog.materializer import run_round
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.recovery import recover
from tests.support.rigs.log import TwinLog, settings_for, state_of

MOST_STEPS = 200


class Dead(BaseException):
    """The process died here."""


class Disk:
    """A disk that fails at its n-th step. `told` are the steps so far."""

    def __init__(self, at: int, failure: BaseException | None) -> None:
        self.told: list[str] = []
        self._at = at
        self._failure = failure

    def __call__(self, step: str, _path: Path) -> None:
        """Record the step, or fail."""
        if len(self.told) == self._at and self._failure is not None:
            raise self._failure
        self.told.append(step)


FAILURES: list[tuple[BaseException, type[BaseException]]] = [
    (OSError(errno.ENOSPC, "full"), StorageFull),
    (OSError(errno.EIO, "broken"), StoreUnavailable),
    (Dead(), Dead),
]
each_failure = pytest.mark.parametrize(("failure", "raised"), FAILURES, ids=["full", "broken", "dead"])


def _every_step(play: Callable[[Disk], object], failure: BaseException, raised: type[BaseException]) -> list[str]:
    """Play with a failure at each step, one after the other, until none is left to fail. Return the steps."""
    for at in range(MOST_STEPS):
        disk = Disk(at, failure)
        try:
            play(disk)
        except raised:
            continue
        assert len(disk.told) == at, "a failure of the disk was swallowed"
        return disk.told
    raise AssertionError("there is no end of steps")


@each_failure
@pytest.mark.parametrize(("deltas", "files"), [(0, 3), (1, 2)], ids=["delta-and-merge", "merged-at-once"])
def test_a_round_whose_scratch_directory_fails_leaves_nothing_and_is_made_anew(
    tmp_path: Path, deltas: int, files: int, failure: BaseException, raised: type[BaseException]
) -> None:
    """A round whose scratch directory fails leaves nothing, and the next one is whole.

    It has segments and merges: of a delta that is a file, or one that is merged during its replay, since the previous
    delta's size is known. The store has no run that no manifest names.
    """
    settings = settings_for(tmp_path, fanout=2, fold_bytes=64)
    twin = TwinLog(partitions=1)
    for i in range(4):
        twin.write({b"k%d" % (i % 3): b"%d" % i * 20, b"other%d" % i: bytes(40)})
        if i <= deltas:
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    before = twin.run_paths()

    def play(disk: Disk) -> None:
        try:
            outcome = replace(twin.environment, disk=disk).run(Round, twin.open(), settings).run()
        except BaseException:
            assert twin.run_paths() == before
            assert list(tmp_path.iterdir()) == []
            assert state_of(twin.open()) == twin.model
            raise
        assert isinstance(outcome, CompletedRound)

    steps = _every_step(play, failure, raised)
    assert (steps[0], set(steps)) == ("make", {"make", "open", "write", "finish"})
    assert steps.count("open") == files, "segments, a delta if it is a file, and a merge"
    assert list(tmp_path.iterdir()) == []
    assert state_of(twin.open()) == twin.model


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"a value that stands alone") + 5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("step", "harm"), [("finish", _flip), ("open", Path.unlink)])
def test_a_delta_that_the_disk_harms_before_it_is_merged_is_written_again(
    tmp_path: Path, step: str, harm: Callable[[Path], None]
) -> None:
    """A delta that changes or vanishes before its merge is written again: no snapshot has it, and it is no damage."""
    settings, twin, files = settings_for(tmp_path, fanout=2), TwinLog(partitions=1), list[Path]()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, twin.open(), settings)
    twin.write({b"b": b"a value that stands alone"})

    def disk(now: str, path: Path) -> None:
        if files and now == step:
            harm(files[0])
        files.extend([path] * (now == "open"))

    with pytest.raises(StoreUnavailable, match="did not arrive whole"):
        replace(twin.environment, disk=disk).run(run_round, twin.open(), settings)
    assert list(tmp_path.iterdir()) == []
    outcome = twin.environment.run(run_round, twin.open(), settings)
    assert isinstance(outcome, CompletedRound)
    assert (outcome.runs_merged, state_of(twin.open())) == (2, twin.model)


def test_a_delta_that_goes_once_it_is_merged_is_missed_by_nobody(tmp_path: Path) -> None:
    """No round misses a delta that a cleaner deletes after its merge: the round would have removed it next."""
    settings, twin, opened = settings_for(tmp_path, fanout=2), TwinLog(partitions=1), list[Path]()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, twin.open(), settings)
    twin.write({b"b": b"2"})

    def disk(step: str, path: Path) -> None:
        opened.extend([path] * (step == "open"))
        if step == "finish" and len(opened) == 2:
            opened[0].unlink()

    outcome = replace(twin.environment, disk=disk).run(run_round, twin.open(), settings)
    assert isinstance(outcome, CompletedRound)
    assert (outcome.runs_merged, state_of(twin.open())) == (2, twin.model)


def test_a_scratch_directory_that_is_wiped_under_a_round_fails_it_at_most(tmp_path: Path) -> None:
    """A wiped scratch directory at most fails the round, with an error that daemons tolerate."""
    settings, ends = settings_for(tmp_path, fanout=2, fold_bytes=200), list[bool]()
    for at in range(MOST_STEPS):
        twin = TwinLog(partitions=1)
        for number in range(2):
            twin.write({b"%d-%d" % (number, i): bytes(30) for i in range(20)})
            if not number:
                twin.environment.run(run_round, twin.open(), settings)
        disk = Disk(at, None)

        def wiped(step: str, path: Path, disk: Disk = disk, at: int = at) -> None:
            for one in tmp_path.iterdir() if len(disk.told) == at else ():
                shutil.rmtree(one)
            disk(step, path)

        try:
            outcome = replace(twin.environment, disk=wiped).run(run_round, twin.open(), settings)
        except StoreUnavailable:
            ends.append(False)
        else:
            ends.append(isinstance(outcome, CompletedRound))
        assert list(tmp_path.iterdir()) == []
        assert state_of(twin.open()) == twin.model
        if len(disk.told) < at:
            break
    assert set(ends) == {True, False}
    assert ends[-1]


def _rows(path: Path) -> dict[object, object]:
    table = pq.read_table(path)
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


@each_failure
@pytest.mark.parametrize("target", ["parquet", "rocksdb"])
def test_a_target_on_a_failing_disk_is_whole_or_as_it_was(
    tmp_path: Path, target: str, failure: BaseException, raised: type[BaseException]
) -> None:
    """On a failing disk an old file stays as it was, a database does not appear, and no other file or lease is left."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    path = tmp_path / "state"
    if target == "parquet":
        recover(twin.open()).to_parquet(path)
    older = path.read_bytes() if target == "parquet" else None
    twin.write({b"a": b"2", b"b": b"3"})

    def play(disk: Disk) -> None:
        recovery = Environment(disk=disk).run(recover, twin.open())
        try:
            recovery.to_parquet(path) if target == "parquet" else recovery.to_rocksdb(path)
        except BaseException:
            assert (path.read_bytes() if path.exists() else None) == older
            assert [one for one in tmp_path.iterdir() if one != path] == []
            assert twin.disk.files("log/leases/") == []
            raise

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = _every_step(play, failure, raised)
    assert steps == ["make", "open", "write", "sync", "rename"]
    if target == "parquet":
        assert _rows(path) == twin.model
    else:
        database = rocksdict.Rdict(str(path), access_type=rocksdict.AccessType.read_only())
        assert len(list(database.keys())) == len(twin.model)
        database.close()
