"""In a run of several processes, tests that belong together run in one of them."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
_CONFTEST = """
import pytest

from tests.support.services import broker

pytest_plugins = ["tests.support.sharing"]
broker.open_shared_broker = lambda *_: broker.Broker(bootstrap="", kind="none")

@pytest.fixture(scope="session")
def cluster(note):
    yield
    note("ended")

@pytest.fixture(scope="session")
def note():
    import os

    def write(name):
        with open("{notes}", "a") as file:
            file.write(name + " " + os.environ["PYTEST_XDIST_WORKER"] + "\\n")

    return write
"""
_TESTS = """
import time

import pytest

@pytest.mark.parametrize("number", range(6))
{mark}def test_it(number, note{fixture}):
    time.sleep(0.05)
    note("{name}")
"""
_MARKED, _SHARING = ("three", "four"), ("five", "six")


def test_mates_go_to_one_process(tmp_path: Path) -> None:
    """Tests of a file, of two files with one mark, or with one shared fixture, go to one process.

    The file may be one of two with equal names. The fixture ends before that process continues.
    """
    notes = tmp_path / "notes"
    (tmp_path / "conftest.py").write_text(_CONFTEST.format(notes=notes), "utf-8")
    for name in ("one", "two", *_MARKED, *_SHARING):
        path = tmp_path / name / "test_mates.py"
        path.parent.mkdir()
        mark = '@pytest.mark.xdist_group("both")\n' if name in _MARKED else ""
        fixture = ", cluster" if name in _SHARING else ""
        path.write_text(_TESTS.format(mark=mark, fixture=fixture, name=name), "utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-q"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ran = subprocess.run(
        [*command, "--import-mode=importlib", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names: defaultdict[str, list[str]] = defaultdict(list)
    for line in notes.read_text("utf-8").splitlines():
        name, process = line.split()
        names[process].append(name)
    for mates in (("one",), ("two",), _MARKED, _SHARING):
        assert sum(not set(mates).isdisjoint(found) for found in names.values()) == 1, mates
    sharing = next(found for found in names.values() if "ended" in found)
    assert sharing.index("ended") == 12
    assert set(sharing[:12]) == set(_SHARING)
    assert len(sharing) > 13, "that process continued"
