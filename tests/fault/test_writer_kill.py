"""SIGKILL of a writer between every two steps of open, persist and commit, on a real broker.

After every kill the next incarnation starts from the log alone (and from the job's stored handle). In the end the state
is exactly the fold of the source. The committed position never goes back on the way.
"""

import signal
from pathlib import Path

import pytest

from statelog.producer.writer import Writer
from tests.sim.source import COPIED
from tests.support.processes.doomed import NEVER, writer_life
from tests.support.processes.parts import Lives, start
from tests.support.rigs.log import LogRig, real_rig
from tests.support.services.broker import Broker, OwnBroker

END = 1_000


def live(lives: Lives, rig: LogRig, bootstrap: str, directory: Path, point: str, times: int) -> int:
    """Run one incarnation of the doomed writer; return its exit code, -SIGKILL if it killed itself."""
    places = (directory / "root", directory / "kept")
    return lives.live(writer_life, rig.name, bootstrap, *places, point, times, END)


def committed(rig: LogRig) -> int:
    """Return the source position that the log names."""
    with rig.open() as log:
        last = log.history.read().state.commits.get("doomed")
    return int(last.metadata["position"]) if last else 0


@pytest.mark.broker
def test_killed_at_every_named_point(broker: Broker, lives: Lives, log_name: str, tmp_path: Path) -> None:
    """A copy by writers that are killed at each point in turn, early and late, ends exact."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    position = 0
    for i, point in enumerate(Writer.CRASH_POINTS):
        times = 1 if point == "opened" else 2 + i
        assert live(lives, rig, broker.bootstrap, tmp_path, point, times) == -signal.SIGKILL
        now = committed(rig)
        assert rig.state() == COPIED.fold(now)
        assert now >= position
        position = now
    assert 0 < position < END

    assert live(lives, rig, broker.bootstrap, tmp_path, NEVER, 1) == 0

    assert rig.state() == COPIED.fold(END)


@pytest.mark.broker
@pytest.mark.timeout(240)
def test_broker_killed_and_restarted_under_load(
    own_broker: OwnBroker, lives: Lives, log_name: str, tmp_path: Path
) -> None:
    """A broker that dies under a writer costs time or, with an error, that writer; no acknowledged commit is lost."""
    rig = real_rig(log_name, own_broker.bootstrap, tmp_path / "root")
    rig.create().close()
    places = (tmp_path / "root", tmp_path / "kept")
    with start(writer_life, rig.name, own_broker.bootstrap, *places, NEVER, 1, END * 20) as process:
        while committed(rig) == 0:
            assert process.poll() is None
        own_broker.kill()
        own_broker.restart()
        before = committed(rig)
        process.wait(timeout=150)
    assert rig.state() == COPIED.fold(committed(rig))
    assert committed(rig) >= before > 0
    assert live(lives, rig, own_broker.bootstrap, tmp_path, NEVER, 1) == 0

    assert committed(rig) >= END
    assert rig.state() == COPIED.fold(committed(rig))
