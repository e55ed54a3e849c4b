"""`statelog completion`, the overview of commands, and suggestions for misspelt ones."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog.cli.program import COMMANDS, MEANT, SECTIONS, program
from tests.support.waiting import wait_for

CALL = "import sys; from statelog.cli import main; sys.argv[0] = 'statelog'; main()"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_asks_the_command(shell: str) -> None:
    """A shell asks the command through its completion variable."""
    found = CliRunner().invoke(program, ["completion", shell])
    assert found.exit_code == 0, found.output
    assert f"_STATELOG_COMPLETE={shell}_complete" in found.stdout
    assert CliRunner().invoke(program, ["completion", "tcsh"]).exit_code == 2


def test_bash_reads_it() -> None:
    """Bash accepts the script, and its questions are answered with the matching commands and options."""
    script = CliRunner().invoke(program, ["completion", "bash"]).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert _completed("statelog", "de") == {"describe", "delete", "dev"}
    assert _completed("statelog", "doctor", "--d") == {"--deep"}


def test_the_overview_has_every_command_in_one_section() -> None:
    """The overview lists every command in one section, by purpose."""
    named = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(named) == sorted(COMMANDS)
    told = CliRunner().invoke(program, ["--help"]).stdout
    assert re.findall(r"(?m)^([A-Z][a-z ]+):$", told) == ["Options", *SECTIONS]
    assert re.findall(r"(?m)^  ([a-z][a-z-]*) {2,}", told) == named


def test_the_names_of_logs_are_completed(tmp_path: Path) -> None:
    """Log names are completed from the root in the words or the environment.

    A missing or silent root completes nothing.
    """
    for name in ("visits", "visitors", "orders"):
        (tmp_path / name).mkdir()
    at = str(tmp_path)
    for command in ("get", "describe", "materialize", "doctor"):
        wait_for(lambda: _completed("statelog", command, "vis", STATELOG_ROOT=at) == {"visits", "visitors"})  # noqa: B023 - it is called here alone
    wait_for(lambda: _completed("statelog", "get", "--root", at, "or") == {"orders"})
    assert _completed("statelog", "init", "vis", STATELOG_ROOT=at) == set()
    assert _completed("statelog", "get", "vis", STATELOG_ROOT="nosuch://a/b") == set()
    silent = "s3://bucket/logs"
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        options = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{deaf.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "x"}
        assert _completed("statelog", "get", "vis", STATELOG_ROOT=silent, AWS_SECRET_ACCESS_KEY="x", **options) == set()


def _completed(*words: str, **variables: str) -> set[str]:
    """Return the completions of the last word."""
    environment = {
        **os.environ, **variables, "_STATELOG_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    told = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=True)
    assert not told.stderr
    return {line.partition(",")[2] for line in told.stdout.splitlines() if line}


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("descibe", "No such command 'descibe'. Did you mean 'describe'?"),
        ("create", "No such command 'create'. Did you mean 'init'?"),
        ("restor", "No such command 'restor'. Did you mean 'recover'?"),
        ("frobnicate", "No such command 'frobnicate'.\n"),
    ],
)
def test_the_nearest_command_is_named(typed: str, told: str) -> None:
    """A misspelt command, or another tool's name for it, suggests the nearest one. Distant words suggest nothing."""
    found = CliRunner().invoke(program, [typed])
    assert found.exit_code == 2
    assert told in found.output


def test_what_others_call_a_command_is_no_command() -> None:
    """Each of other tools' words for a command leads to an existing one, and is itself no command."""
    assert set(MEANT.values()) <= COMMANDS.keys()
    assert not MEANT.keys() & COMMANDS.keys()
