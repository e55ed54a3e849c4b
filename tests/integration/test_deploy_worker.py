"""The worker of `deploy/worker` on a real broker, as its image runs it: it counts, reports health, and goes on."""

import os
import re
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
from statelog.testing.broker import free_port
from tests.support.documents import ROOT
from tests.support.services.broker import Broker
from tests.support.services.http import asked
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker


@contextmanager
def _worker(place: Place, folder: Path, **more: str) -> Generator["subprocess.Popen[bytes]"]:
    environment = {
        **os.environ,
        **more,
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


def _wanted() -> set[str]:
    """Return the series of workers and of commits that the dashboard and the alerts ask for."""
    texts = [ROOT / "deploy" / "grafana" / "statelog.json", ROOT / "deploy" / "prometheus" / "statelog-alerts.yml"]
    found = {name for text in texts for name in re.findall(r"statelog_(?:worker|commit)_\w+", text.read_text("utf-8"))}
    assert len(found) > 5
    return found


def test_the_worker_tells_how_it_is(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """The worker reports live and ready to the kubelet, and all series of dashboard and alerts to Prometheus."""
    (tmp_path / "root").mkdir()
    place = Place(name=log_name, bootstrap=broker.bootstrap, root=str(tmp_path / "root"))
    place.fill([(b"a", b"a"), (b"b", b"b"), (b"a", b"a")], partitions=2)
    listen, probes = free_port(), free_port()
    with _worker(place, tmp_path, LISTEN=f"127.0.0.1:{listen}", PROBES=f"0.0.0.0:{probes}") as process:
        wait_for(lambda: sum(_counts(place).values()) == 3)
        wait_for(lambda: asked(probes, "/readyz") == (200, "ready\n"))
        assert asked(probes, "/livez") == asked(listen, "/livez") == (200, "live\n")
        assert asked(probes, "/metrics")[0] == 404
        wait_for(lambda: _wanted() <= set(re.findall(r"^(\w+)\{", asked(listen, "/metrics")[1], re.MULTILINE)))
        _, metrics = asked(listen, "/metrics")
        assert f'statelog_worker_tables{{log="{log_name}"}} 2.0' in metrics
        assert f'statelog_disk_free_bytes{{path="{tmp_path / "state"}"}}' in metrics
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    place.clean()


def test_the_worker_counts_and_ends_well(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """SIGTERM ends the worker with 0, behind its last commit; the next one goes on behind that, in its directory."""
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
