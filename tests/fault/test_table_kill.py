"""SIGKILL of a table's process on a real broker: at every named point in turn, and at any moment under load.

After every kill the next incarnation finds the fold of the input up to the table's progress, which never goes back. In
RocksDB it reads only commits behind its directory's position.
"""

import random
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from statelog.environment import Environment
from statelog.store.run_writer import RunWriter
from statelog.tables import Table
from tests.sim.source import COPIED
from tests.support.processes.doomed import LATE_S, NEVER, dues_of, position_of, table_life
from tests.support.processes.parts import Lives, start
from tests.support.rigs.log import LogRig, real_rig
from tests.support.rigs.table import TableRig, content
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

POINTS = ("opened", "recovered", "set-aside", "caught-up", "table-open", "sealed", "sent", "persisted", "commit-made")
POINTS_BEHIND = ("committed", "history", "applied")
END = 3_000

pytestmark = pytest.mark.broker


def _arguments(rig: LogRig, directory: Path, local: str) -> list[str]:
    return [rig.name, rig.bootstrap, str(directory / "root"), local]


@pytest.mark.parametrize("backend", ["dict", "rocksdb"])
def test_killed_at_every_named_point(broker: Broker, lives: Lives, log_name: str, tmp_path: Path, backend: str) -> None:
    """Killed at every named point, early and late, a table comes to the end with the fold of the whole input."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    local = tmp_path / "local" if backend == "rocksdb" else None
    arguments = _arguments(rig, tmp_path, str(local or NEVER))
    position, killed = 0, 0
    for i, point in enumerate((*POINTS, *POINTS_BEHIND)):
        times = 1 if i < POINTS.index("sealed") else 2 + i % 3
        end = END if i >= POINTS.index("sealed") else position
        code = lives.live(table_life, *arguments, point, times, end)
        assert code in (0, -signal.SIGKILL), f"{point}: {code}"
        killed += code != 0
        now = position_of(rig)
        assert now >= position
        assert rig.state() == COPIED.fold(now)
        position = now
    assert killed >= 10 - (backend == "dict") * 3
    assert 0 < position < END
    assert lives.live(table_life, *arguments, NEVER, 1, END) == 0
    with TableRig(rig, local).open() as table:
        assert (table.progress, content(table)) == ({"position": END}, COPIED.fold(END))
        _check_was_kept(table, local)


@pytest.mark.parametrize("backend", [pytest.param("dict", marks=pytest.mark.soak), "rocksdb"])
def test_killed_while_it_loads(
    broker: Broker, lives: Lives, log_name: str, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table killed while it loads a snapshot goes on with the part that its directory lacks.

    This holds also where a run of the newest snapshot is missing, and the process dies as it moves to the one before.
    """
    monkeypatch.setitem(cast("dict[str, Any]", RunWriter.__init__.__kwdefaults__), "target_rows", 2)
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    local = tmp_path / "local" if backend == "rocksdb" else None
    arguments = _arguments(rig, tmp_path, str(local or NEVER))
    for end in (END // 3, END // 3 + 50):
        TableRig(rig, None).roll_up(tmp_path)
        assert lives.live(table_life, *_arguments(rig, tmp_path, NEVER), NEVER, 1, end) == 0
    killed = 0
    for point, times in (("tail-folded", 1), ("group-loaded", 3), ("group-loaded", 2), ("all-loaded", 1)):
        code = lives.live(table_life, *arguments, point, times, END, "behind")
        assert code in (0, -signal.SIGKILL), f"{point}: {code}"
        killed += code != 0
        assert rig.state() == COPIED.fold(position_of(rig))
        if local is not None and times == 3:
            with _newest_runs_gone(rig, tmp_path):
                assert lives.live(table_life, *arguments, "base-moved", 1, END, "behind") == -signal.SIGKILL
    assert killed >= 3
    assert lives.live(table_life, *arguments, NEVER, 1, END, "behind") == 0
    with TableRig(rig, local).open() as table:
        assert (table.progress, content(table), table.is_local) == ({"position": END}, COPIED.fold(END), True)
        _check_was_kept(table, local)


@pytest.mark.parametrize("loading", ["first", "behind"])
def test_killed_with_rows_that_expire(
    broker: Broker, lives: Lives, log_name: str, tmp_path: Path, loading: str
) -> None:
    """A table killed around a commit has every due in its directory, and deletes all of these rows when they come."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    local, position, killed = tmp_path / "local", 0, 0
    arguments = _arguments(rig, tmp_path, str(local))
    for i, point in enumerate(("sealed", "history", "applied", "caught-up", "table-open")):
        code = lives.live(table_life, *arguments, point, 1 + 3 * (i < 3), END, loading, "dues")
        assert code in (0, -signal.SIGKILL), f"{point}: {code}"
        killed += code != 0
        if i == 1:
            TableRig(rig, None).roll_up(tmp_path)
        assert position_of(rig) >= position
        position = position_of(rig)
    assert killed == 5
    assert lives.live(table_life, *arguments, NEVER, 1, END, loading, "dues") == 0
    left = {key: value for key, value in COPIED.fold(END).items() if key not in dues_of(END)}
    assert 0 < len(left) < len(COPIED.fold(END))
    with TableRig(rig, local).open(environment=Environment(wall_clock=lambda: 2.0 * LATE_S)) as table:
        assert content(table) == left
        _check_was_kept(table, local)
        table.commit({"position": END})
    assert rig.state() == left


@contextmanager
def _newest_runs_gone(rig: LogRig, tmp_path: Path) -> Generator[None]:
    """Yield while the runs that a new snapshot has, and the one before has not, are missing."""
    runs, aside = tmp_path / "root" / rig.name / "runs", tmp_path / "aside"
    known = set(runs.iterdir())
    TableRig(rig, None).roll_up(tmp_path)
    gone = set(runs.iterdir()) - known
    assert gone
    aside.mkdir()
    for run in gone:
        run.rename(aside / run.name)
    yield
    for run in gone:
        (aside / run.name).rename(run)


def test_killed_at_any_moment(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A table killed from outside at any moment of its work is exact after each of the kills."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    local, chance, position = tmp_path / "local", random.Random(), 0
    arguments = [*_arguments(rig, tmp_path, str(local)), NEVER, 1, END * 100]
    for _ in range(4):
        with start(table_life, *arguments) as process:
            _await_commit(rig, position, process)
            time.sleep(chance.random() / 5)
            process.kill()
        position = position_of(rig)
        with TableRig(rig, local).open() as table:
            assert table.progress == {"position": position}
            assert content(table) == COPIED.fold(position)
            _check_was_kept(table, local)


def _await_commit(rig: LogRig, position: int, process: "subprocess.Popen[bytes]") -> None:
    def has_moved() -> bool:
        assert process.poll() is None
        return position_of(rig) > position

    wait_for(has_moved, tick_s=0.05)


def _check_was_kept(table: Table[bytes, bytes], local: Path | None) -> None:
    assert table.opening.set_aside is None
    assert (table.opening.from_position is not None) is (local is not None)
