"""The end of a run in several processes is listed with what each process waited for."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.ending import Phase, ending
from tests.support.processes.parts import environment

_CONFTEST = """
from tests.support import ending
from tests.support.services import broker

pytest_plugins = ["tests.support.sharing", "tests.support.ending"]
broker.open_shared_broker = lambda *_: broker.Broker(bootstrap="", kind="none")
ending.EVERY_S, ending.SHORT_S = 0.1, 0.1
"""
_TESTS = """
import time

def test_it():
    time.sleep(0.4)

def test_other():
    until_s = time.process_time() + 0.7
    while time.process_time() < until_s:
        pass
"""


def _phase(process: str, test: str, start_s: float, stop_s: float, **waited: float) -> Phase:
    return Phase(process, test, test.partition("::")[0], start_s, stop_s, waited)


def test_the_end_is_listed_by_process_and_by_line() -> None:
    """Each process lists its long tests of the last minutes, each with the lines that it waited at.

    What began before counts from the beginning of the last minutes on, and the short tests are one line.
    """
    phases = [
        _phase("gw0", "a.py::early", 0, 100),
        _phase("gw0", "b.py::long", 300, 400, line_of_a=61, line_of_b=30, line_of_c=0.5),
        _phase("gw0", "b.py::long", 400, 520, line_of_a=9),
        _phase("gw1", "c.py::one", 400, 402),
        _phase("gw1", "c.py::two", 402, 404),
        _phase("gw1", "c.py::last", 404, 500),
    ]
    assert list(ending(phases)) == [
        "gw0",
        "    180 s  b.py::long: 70 s at line_of_a, 30 s at line_of_b",
        "gw1, idle for the last 20 s",
        "     96 s  c.py::last",
        "      4 s  in 2 shorter tests",
        "longest groups: b.py 220 s, a.py 100 s, c.py 100 s",
    ]


def test_a_run_notes_where_it_waits(tmp_path: Path) -> None:
    """A run in another process lists a test that sleeps with the line of it, and one that computes with none."""
    (tmp_path / "conftest.py").write_text(_CONFTEST, "utf-8")
    (tmp_path / "test_waits.py").write_text(_TESTS, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadscope", "-q", "--import-mode=importlib",
         "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = dict(re.findall(r"^ +\d+ s  test_waits\.py::(\w+)(.*)$", ran.stdout, re.MULTILINE))
    assert re.match(r": \d+ s at test_waits\.py:5", lines["test_it"]), ran.stdout
    assert not re.search(r"[1-9]\d* s at", lines["test_other"]), ran.stdout
    assert re.search(r"^longest groups: test_waits\.py \d+ s$", ran.stdout, re.MULTILINE), ran.stdout
