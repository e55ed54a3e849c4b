"""The tests in the guide run as printed, in a pytest that knows only the plugin."""

import subprocess
import sys
from pathlib import Path

from tests.support.documents import DOCS, programs


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """All tests of the guide pass, in a session of their own."""
    shown = "\n\n".join(programs(DOCS / "guide" / "testing.md"))
    (tmp_path / "test_shown.py").write_text(shown, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "statelog.pytest_plugin", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{shown.count('def test_')} passed" in done.stdout


def test_the_plugin_costs_those_nothing_who_do_not_ask_for_it() -> None:
    """The plugin, which every session of an environment loads, loads neither Arrow nor a Kafka client."""
    heavy = "{'pyarrow', 'confluent_kafka', 'statelog.testing'}"
    program = f"import sys, statelog.pytest_plugin; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "set()\n"
