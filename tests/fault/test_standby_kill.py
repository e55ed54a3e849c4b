"""SIGKILL of an owner under load on a real broker, with a standby that takes over; exact every time.

The standby is of this process, the owner of another. After each kill the standby is promoted: its state is the fold of
the input up to its progress. The progress is not below the owner's last commit, and the standby goes on from there.
Then the next owner opens, which fences it.
"""

import random
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statelog.errors import Fenced
from statelog.tables import Standby
from tests.sim.source import COPIED
from tests.support.processes.doomed import NEVER, position_of, table_life
from tests.support.processes.parts import start
from tests.support.rigs.log import LogRig, real_rig
from tests.support.rigs.table import TableRig, content
from tests.support.samples.folds import put_all
from tests.support.services.broker import Broker, OwnBroker
from tests.support.waiting import wait_for

WAIT_S = 60.0

pytestmark = pytest.mark.broker


@contextmanager
def _owner(rig: LogRig, root: Path) -> "Generator[subprocess.Popen[bytes]]":
    with start(table_life, rig.name, rig.bootstrap, root, NEVER, NEVER, 1, 1_000_000) as process:
        try:
            yield process
        finally:
            process.kill()


def _await_progress(standby: Standby[bytes, bytes], above: int, process: "subprocess.Popen[bytes]") -> None:
    def is_further() -> bool:
        assert process.poll() is None
        return int(standby.progress.get("position", 0)) > above

    wait_for(is_further)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "zombie"])
def test_a_takeover_under_load(broker: Broker, log_name: str, tmp_path: Path, is_killed: bool) -> None:
    """A standby takes over from a killed owner in RocksDB, and from a working one in a dict, which learns so."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    chance, position = random.Random(), 0
    tables = TableRig(rig, tmp_path / "local" if is_killed else None)
    for _ in range(2 if is_killed else 1):
        with _owner(rig, tmp_path / "root") as process, tables.standby(poll_s=0.01) as standby:
            _await_progress(standby, position, process)
            seen = int(standby.progress["position"])
            time.sleep(chance.random() / 5)
            if is_killed:
                process.send_signal(signal.SIGKILL)
                process.wait()
                position = position_of(rig)
            with standby.promote() as table:
                position, before = int(table.progress["position"]), position
                assert position >= max(before, seen)
                assert content(table) == COPIED.fold(position)
                for now in range(position, position + 50):
                    put_all(table, [COPIED.change(now)])
                position += 50
                table.commit({"position": position})
                assert process.wait(WAIT_S) == (-signal.SIGKILL if is_killed else 1), "the owner's epoch has ended"
                assert content(table) == COPIED.fold(position)
        assert (rig.state(), position_of(rig)) == (COPIED.fold(position), position)


@pytest.mark.soak
def test_a_broker_that_restarts_under_a_standby(own_broker: OwnBroker, log_name: str, tmp_path: Path) -> None:
    """A promotion opens after a broker's restart, although the standby's spare producer is older."""
    rig = real_rig(log_name, own_broker.bootstrap, tmp_path / "root")
    rig.create().close()
    tables = TableRig(rig, None)
    for pause_s in (0.0, 15.0):
        with tables.open() as table, tables.standby(poll_s=0.05) as standby:
            table[b"a"] = b"%d" % int(pause_s)
            table.commit({"position": int(pause_s)})
            own_broker.restart()
            time.sleep(pause_s)
            with standby.promote() as promoted:
                promoted[b"b"] = b"2"
                promoted.commit({"position": 1})
                assert content(promoted) == {b"a": b"%d" % int(pause_s), b"b": b"2"}
            with pytest.raises(Fenced):
                table.commit()
