"""The tests that the guide shows are run as they are printed, by a pytest that knows the plugin and nothing of ours."""

import subprocess
import sys
from pathlib import Path

from tests.support.documents import DOCS, programs


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """All of them, in a session of their own, and none is left out."""
    shown = "\n\n".join(programs(DOCS / "guide" / "testing.md"))
    (tmp_path / "test_shown.py").write_text(shown, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "statelog.pytest_plugin", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{shown.count('def test_')} passed" in done.stdout


def test_the_plugin_costs_those_nothing_who_do_not_ask_for_it() -> None:
    """Loaded in every session of an environment, it loads neither Arrow nor a Kafka client."""
    heavy = "{'pyarrow', 'confluent_kafka', 'statelog.testing'}"
    program = f"import sys, statelog.pytest_plugin; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "set()\n"
