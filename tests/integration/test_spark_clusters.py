"""The programs of a Spark user on every kind of cluster: classic, Connect, `local-cluster`, standalone."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.services.broker import Broker
from tests.support.spark.clusters import KINDS
from tests.support.spark.programs import PROGRAMS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]
_TIMEOUT_S = 840.0
_EVERY_RUN = ("write batches", "read, joined")
"""The programs of the ordinary run, which has Connect alone; `make soak` has all of both."""


@pytest.mark.parametrize(
    ("kind", "programs"),
    [
        pytest.param("connect", _EVERY_RUN, id="connect in short"),
        *(pytest.param(kind, tuple(PROGRAMS), marks=pytest.mark.soak, id=kind) for kind in KINDS),
    ],
)
@pytest.mark.xdist_group("cluster kinds")
def test_all_programs_are_right(kind: str, programs: tuple[str, ...], broker: Broker, tmp_path: Path) -> None:
    """All programs run in one session, one after the other, and each equals its plain model."""
    errors = tmp_path / "errors"
    with errors.open("wb") as output:
        runner = [sys.executable, "-m", "tests.support.spark.clusters"]
        command = [*runner, kind, broker.bootstrap, str(tmp_path / kind), *programs]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, start_new_session=True)
        try:
            printed, _ = process.communicate(timeout=_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # The remains of a cluster that was cut short.
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["program"]: line["error"] for line in lines} == dict.fromkeys(programs, ""), errors.read_text()[-3000:]
    assert process.returncode == 0
