"""Exit codes, errors and output of the `statelog` command, without a broker."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog import errors
from statelog.cli import output
from statelog.cli.output import CliOutput, exit_code
from statelog.cli.program import COMMANDS, program
from statelog.cli.progress import PlainBar
from statelog.errors import (
    AlreadyExists,
    BrokerUnavailable,
    CommitRefused,
    ConfigError,
    DataLoss,
    Fenced,
    IncompleteChangeSet,
    NotFound,
    OutcomeUnknown,
    StatelogError,
    UnknownFormat,
    UnsafeTopic,
)
from statelog.formatting import clean
from statelog.operate.report import Listing, Report

ROOT = Path(__file__).parents[3]


def test_a_question_shows_no_secret() -> None:
    """A question masks the credentials of a root that would be refused only when it is opened."""
    typed = ["delete", "log", "--bootstrap", "b:1", "--root", "s3://key:canary-4711@bucket/logs"]
    asked = CliRunner().invoke(program, typed, input="another\n")
    assert asked.exit_code == output.MISUSE
    assert "below s3://***@bucket/logs" in asked.output
    assert "canary" not in asked.output


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ConfigError, 2), (UnsafeTopic, 2), (NotFound, 3), (AlreadyExists, 3), (BrokerUnavailable, 4),
        (OutcomeUnknown, 4), (Fenced, 5), (DataLoss, 6), (IncompleteChangeSet, 6), (UnknownFormat, 6),
        (CommitRefused, 1),
    ],
)  # fmt: skip
def test_an_error_has_its_code(kind: type[StatelogError], code: int) -> None:
    """Each branch of the error tree has the exit code of the table."""
    assert exit_code(kind("x")) == code


def test_only_damage_has_the_code_of_damage() -> None:
    """Only errors below Damaged exit with 6, and each of them does."""
    kinds = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, StatelogError)]
    assert {one for one in kinds if exit_code(one("x")) == 6} == {
        one for one in kinds if issubclass(one, errors.Damaged)
    }


def test_the_table_is_documented() -> None:
    """The page of the command line lists every code."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    codes = {value for name, value in vars(output).items() if re.match("[A-Z]", name) and type(value) is int}
    assert {int(found) for found in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes


def test_every_command_loads_and_helps() -> None:
    """Each command of the overview exists and describes itself."""
    for name in COMMANDS:
        result = CliRunner().invoke(program, [name, "--help"])
        assert (name, result.exit_code) == (name, 0)
        assert f"Usage: statelog {name}" in result.output


def test_the_help_of_get_and_follow_says_what_is_not_seen() -> None:
    """The help texts say how a negative number is given, and the default without an option."""
    texts = {name: CliRunner().invoke(program, [name, "--help"]).output for name in ("get", "follow", "recover")}
    assert "Put `--` before negative numbers." in " ".join(texts["get"].split())
    assert all("[default: lease]" in " ".join(text.split()) for text in texts.values())


@pytest.mark.parametrize("args", [["nope"], ["recover"], ["init", "x", "--partitions", "many"]])
def test_a_wrong_call_is_misuse(args: list[str]) -> None:
    """Wrong arguments exit with 2, as text or, on request, as JSON."""
    assert CliRunner().invoke(program, args).exit_code == 2
    result = CliRunner().invoke(program, [*args, "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"] == "Misuse"


def test_without_a_broker_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error for a missing address says how to get a broker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STATELOG_BOOTSTRAP", raising=False)
    result = CliRunner().invoke(program, ["describe", "x"])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "bootstrap is missing" in result.stderr
    assert "statelog dev start" in result.stderr


@pytest.mark.parametrize("args", [["version"], ["--help"]])
def test_a_short_command_loads_no_room(args: list[str]) -> None:
    """Version and help load neither Arrow nor any package but the command line's."""
    code = (
        "import sys\nfrom statelog.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "print(sorted({name for name in sys.modules if name in ('pyarrow', 'numpy', 'statelog.log')}))"
    )
    # The new process does not inherit pytest's path.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


def test_versions_are_json_for_programs() -> None:
    """`version` prints one JSON object on request."""
    found = json.loads(CliRunner().invoke(program, ["version", "--json"]).stdout)
    assert {"statelog", "librdkafka", "pyarrow", "python"} <= found.keys()


def test_an_error_has_what_where_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """An error on standard error has message, facts and hint, one a line. Programs get the same as JSON."""
    error = NotFound("no such thing", hint="Make it", log="x", offset=3)
    CliOutput(as_json=False).error(error)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: no such thing [NotFound]\n  log: x\n  offset: 3\nhint: Make it\n"

    CliOutput(as_json=True).error(error)
    assert json.loads(capsys.readouterr().err) == {
        "error": "NotFound",
        "message": "no such thing",
        "facts": {"log": "x", "offset": 3},
        "hint": "Make it",
    }


REPORT = Report(
    "t",
    {"size_bytes": 2048, "name": "a\x1b[31m", "missing": None},
    (Listing("rows", ("key", "n"), [("k", 1000)]),),
)


def test_a_report_is_plain_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal, people get lines with units, and programs get bare numbers."""
    CliOutput(as_json=False).report(REPORT)
    assert capsys.readouterr().out.splitlines() == [
        "size bytes: 2.0 KiB", "name: a\\x1b[31m", "missing: -", "", "rows:", "key\tn", "k\t1,000",
    ]  # fmt: skip
    CliOutput(as_json=True).report(REPORT)
    assert json.loads(capsys.readouterr().out) == {
        "size_bytes": 2048, "name": "a\x1b[31m", "missing": None, "rows": [{"key": "k", "n": 1000}],
    }  # fmt: skip


def test_no_text_ends_its_line_or_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    """A key or a value that contains line ends is one row."""
    CliOutput(as_json=False).report(
        Report("t", {"log": "a\nb"}, (Listing("rows", ("key", "value"), [("k\nx", "v\t1")]),))
    )
    assert capsys.readouterr().out.splitlines() == ["log: a\\nb", "", "rows:", "key\tvalue", "k\\nx\tv\\t1"]


def test_control_characters_do_not_reach_a_terminal() -> None:
    """Control characters in texts of logs and inputs are escaped."""
    assert clean("a\x1b]0;x\x07\nb\tc é") == "a\\x1b]0;x\\x07\nb\tc é"


def test_progress_is_a_line_now_and_then() -> None:
    """Away from a terminal, progress is at most one line in an interval."""
    now = [0.0]
    lines: list[str] = []
    with PlainBar("load", interval_s=5.0, clock=lambda: now[0], echo=lines.append) as bar:
        for second in range(12):
            now[0] = float(second)
            bar.update(second / 12, f"{second} done")
    assert lines == ["load: 42%, 5 done", "load: 83%, 10 done"]


def test_a_root_that_ends_with_the_command_is_refused() -> None:
    """A root that ends with the command exits with 2 before anything is made: two orphaned topics would remain."""
    result = CliRunner().invoke(program, ["init", "x", "--bootstrap", "127.0.0.1:1", "--root", "memory://x"])
    assert result.exit_code == 2
    assert "a root in memory is lost when this command ends" in result.stderr
