"""A run in several processes: what belongs together goes to one of them."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_CONFTEST = """
from tests.support.services import broker

pytest_plugins = ["tests.support.sharing"]
broker.open_shared_broker = lambda *_: broker.Broker(bootstrap="", kind="none")
"""
_TESTS = """
import os, time
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(6))
{mark}def test_it(number):
    time.sleep(0.05)
    with Path("{notes}").open("a") as file:
        file.write("{name} " + os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.mark.parametrize("marked", [False, True], ids=["by file", "by mark"])
def test_mates_go_to_one_process(tmp_path: Path, marked: bool) -> None:
    """The tests of a file, also of one of two equal names, and those of two files that bear one mark."""
    notes = tmp_path / "notes"
    (tmp_path / "conftest.py").write_text(_CONFTEST, "utf-8")
    for name in ("one", "two"):
        path = tmp_path / name / "test_mates.py"
        path.parent.mkdir()
        mark = '@pytest.mark.xdist_group("both")\n' if marked else ""
        path.write_text(_TESTS.format(mark=mark, notes=notes, name=name), "utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", "-q"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ran = subprocess.run(
        [*command, "--import-mode=importlib", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    processes: defaultdict[str, set[str]] = defaultdict(set)
    for line in notes.read_text("utf-8").splitlines():
        name, process = line.split()
        processes["both" if marked else name].add(process)
    assert {name: len(found) for name, found in processes.items()} == ({"both": 1} if marked else {"one": 1, "two": 1})
