"""The worker of `deploy/worker` on a real broker, as its image runs it: it counts, ends well, and goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import statelog
from examples.topic import Place
from statelog.errors import NotFound, Unavailable
from tests.support.documents import ROOT
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker


@contextmanager
def _worker(place: Place, folder: Path) -> Generator["subprocess.Popen[bytes]"]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LOG": place.name,
        "TOPIC": place.topic,
        "MEMBER": "statelog-worker-0",
        "DIRECTORY": str(folder / "state"),
        "STATELOG_BOOTSTRAP": place.bootstrap,
        "STATELOG_ROOT": place.root,
        "STATELOG_REPLICATION_FACTOR": "1",
        "STATELOG_ALLOW_UNSAFE": "replication,min-insync",
    }
    program = [sys.executable, str(ROOT / "deploy" / "worker" / "worker.py")]
    with subprocess.Popen(program, env=environment, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def _counts(place: Place) -> dict[bytes, int]:
    try:
        with statelog.open(place.name, place.where) as log:
            return {key: int(value) for (_, key), value in statelog.recover(log).to_dict().items()}
    except (NotFound, Unavailable):  # not yet, or not for now
        return {}


def test_the_worker_counts_and_ends_well(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """SIGTERM ends it with 0, behind its last commit; the next life has its directory, and goes on behind that."""
    (tmp_path / "root").mkdir()
    place = Place(name=log_name, bootstrap=broker.bootstrap, root=str(tmp_path / "root"))
    place.fill([(b"a", b"a"), (b"b", b"b"), (b"a", b"a")], partitions=2)
    with _worker(place, tmp_path) as process:
        wait_for(lambda: sum(_counts(place).values()) == 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    place.fill([(b"a", b"a")], partitions=2)
    with _worker(place, tmp_path) as process:
        wait_for(lambda: _counts(place) == {b"a": 3, b"b": 1})
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    assert any((tmp_path / "state" / log_name).rglob("CURRENT"))
    place.clean()
