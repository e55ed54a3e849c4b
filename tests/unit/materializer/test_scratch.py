"""Scratch directories are removed after the round, swept after a kill, and never taken from a live round."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.work import scratch_directory
from tests.support.rigs.log import TwinLog, settings_for
from tests.support.told import lines

_DIES = """
import os, signal, sys
from pathlib import Path
from statelog.environment import Environment
from statelog.materializer.work import scratch_directory
with scratch_directory(Path(sys.argv[1]), Environment()) as path:
    (path / "run.parquet").write_bytes(b"x")
    print(path, flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


def another_process(parent: Path, fate: str) -> subprocess.Popen[str]:
    """Work in a scratch directory and print its path, as another process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _DIES, str(parent), fate]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_directory_lives_as_long_as_its_round(tmp_path: Path) -> None:
    """The directory exists during the round, and is removed with its files afterwards, with or without an error."""
    with pytest.raises(ZeroDivisionError), scratch_directory(tmp_path, Environment()) as path:
        (path / "run.parquet").write_bytes(b"x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_two_rounds_of_one_process_do_not_sweep_each_other(tmp_path: Path) -> None:
    """An abandoned round retains its directory while the next one works."""
    with scratch_directory(tmp_path, Environment()) as first, scratch_directory(tmp_path, Environment()) as second:
        assert first != second
        assert first.is_dir()
        assert second.is_dir()


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    """The next round of any process removes a killed process's directory, and leaves those of live processes."""
    with another_process(tmp_path, "die") as dead, another_process(tmp_path, "live") as living:
        assert dead.stdout is not None
        assert living.stdout is not None
        left, used = Path(dead.stdout.readline().strip()), Path(living.stdout.readline().strip())
        dead.wait(60)
        twin = TwinLog()
        twin.write({b"a": b"1"})
        assert (used / "run.parquet").exists()
        run_round(twin.open(), settings_for(tmp_path))
        assert not left.exists()
        assert (used / "run.parquet").exists()
        living.communicate("", timeout=60)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_round_counts_whatever_becomes_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stuck: bool
) -> None:
    """A round counts once its manifest exists.

    A scratch directory that stays is a warning, and a missing one is ignored, too.
    """
    twin = TwinLog()
    twin.write({b"a": b"1"})
    real = shutil.rmtree

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    def crash(point: str) -> None:
        if point == "after-put" and is_stuck:
            monkeypatch.setattr(shutil, "rmtree", refuse)
        elif point == "after-put":
            real(next(tmp_path.iterdir()))

    with lines() as texts:
        assert isinstance(Environment(crash=crash).run(run_round, twin.open(), settings_for(tmp_path)), CompletedRound)
    assert ["stays until it is swept" in text for text in texts] == ([True] if is_stuck else [])


def test_a_scratch_directory_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    """A missing scratch directory is an error of ours that names the setting."""
    with pytest.raises(ConfigError, match="missing"), scratch_directory(tmp_path / "missing", Environment()):
        pass
