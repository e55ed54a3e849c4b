"""Full disks, narrow encodings and Ctrl-C end a command with a line and an exit code, never with a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from statelog.cli import main
from statelog.cli.program import program
from statelog.cli.streams import Interrupt
from statelog.schemas.names import DESCRIPTOR_PATH
from tests.support.samples.format_examples import EXAMPLES

_CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from statelog.cli import main

def tell(event, facts):
    if event == "import" and facts[0] == "statelog.cli.program":
        print("begun", file=sys.stderr, flush=True)

sys.addaudithook(tell)
main()
"""


def start(*args: str, stdout: int = subprocess.PIPE, **environment: str) -> "subprocess.Popen[bytes]":
    """Start a command in its own process. `begun` is its first line on standard error, once Ctrl-C is handled."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("STATELOG_")}
    given |= {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.Popen([sys.executable, "-c", _CODE, *args], stdout=stdout, stderr=subprocess.PIPE, env=given)


@pytest.mark.parametrize("args", [["version"], ["version", "--json"], ["--help"]])
def test_a_full_disk_behind_the_output_is_told(args: list[str]) -> None:
    """A full disk behind standard output is one error, with the exit code for a retry."""
    with Path("/dev/full").open("wb") as full:
        process = start(*args, stdout=full.fileno())
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert b"No space left" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("args", [["version", "--wrong"], ["version", "--json", "--wrong"], ["describe", "no/name"]])
@pytest.mark.parametrize("is_full", [True, False])
def test_nobody_has_to_take_an_error(args: list[str], is_full: bool) -> None:
    """Standard error that cannot be written, or has no reader, changes no exit code."""
    reader, unread = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("wb") as full:
        given = full.fileno() if is_full else unread
        done = subprocess.run([sys.executable, "-m", "statelog", *args], stderr=given, check=False, timeout=60)
    os.close(unread)
    assert done.returncode == 2


def test_a_warning_that_nobody_reads_does_not_end_a_daemon() -> None:
    """Unread warnings do not end a daemon, although its lines go to standard output. It would not be restarted."""
    reader, unread = os.pipe()
    os.close(reader)
    code = "from statelog.cli.serve import JsonLogLines; JsonLogLines().warning('odd')"
    done = subprocess.run([sys.executable, "-c", code], stdout=unread, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(unread)
    assert b"Traceback" not in done.stderr


def test_a_ctrl_c_behind_the_command_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C, while the first is reported, still exits with 130."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("statelog.cli.program.program", interrupt)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130


def test_what_stands_beside_the_result_may_meet_a_full_disk() -> None:
    """The command finishes its work and prints its result, even if a secondary output meets a full disk."""
    imports = "from statelog.cli.streams import discard_unread_stderr, tell"
    code = f"{imports}; tell('beside'); print('result'); discard_unread_stderr()"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, check=True, timeout=60)
    assert done.stdout == b"result\n"


@pytest.mark.parametrize("args", [["version"], ["version", "--json"], ["--help"]])
def test_a_reader_that_goes_away_is_no_failure(args: list[str]) -> None:
    """A reader that goes away, as `| head -1` does, ends the command silently and without an error for `pipefail`."""
    reader, unread = os.pipe()
    os.close(reader)
    process = start(*args, stdout=unread)
    os.close(unread)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"begun\n")


def test_standard_error_that_nobody_reads_changes_no_exit_code() -> None:
    """The exit code still says what happened when the reader of standard error goes away."""
    with start("describe", "x", "--config", "/nowhere.toml") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"begun\n"
        process.stderr.close()
        assert process.wait(timeout=60) == 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_changes_nothing(closed: str, tmp_path: Path) -> None:
    """Closed standard streams change neither the work nor the exit code, and no file gets a stream's number."""
    program = f"""
import os, sys
from statelog.cli.streams import check_stdout, fit_streams, discard_unread_stderr, tell
fit_streams(as_json=False)
check_stdout()
with open({str(tmp_path / "file")!r}, "w") as file:
    os.write(2, b"a library's line")
    file.write("written" + sys.stdin.read())
print("result")
tell("beside")
discard_unread_stderr()
sys.exit(3)
"""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=given, check=False, timeout=60
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == ("" if " >&-" in f" {closed}" else "result\n")
    assert ended.stderr == ("" if "2>&-" in closed else "a library's linebeside\n")
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.parametrize(("settle", "code"), [("discard_unread_stderr()", 3), ("", 120)])
@pytest.mark.parametrize("printed", ["sys.stderr.write('before')", ""])
def test_what_a_library_prints_changes_no_exit_code(settle: str, code: int, printed: str) -> None:
    """A library's prints that nobody reads do not change the exit code. Python itself would end with 120."""
    program = f"""
import sys
from statelog.cli.streams import discard_unread_stderr
sys.stderr.reconfigure(line_buffering=False, write_through=False)
{printed}
{settle}
sys.stderr.write("behind")
sys.exit(3)
"""
    reader, unread = os.pipe()
    os.close(reader)
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], stderr=unread, env=given, check=False, timeout=60)
    os.close(unread)
    assert ended.returncode == code


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A home that is no directory is an error with its path."""
    (tmp_path / "file").touch()
    home = str(tmp_path / "file")
    process = start("dev", "start", HOME=home, XDG_CACHE_HOME=home)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (2, 4), err
    assert home.encode() in err
    assert b"Traceback" not in err


def test_text_that_the_locale_lacks_is_escaped_and_json_is_utf8() -> None:
    """Letters that the terminal lacks are escaped for people. JSON is UTF-8 in every locale."""
    name = "\u65e5"
    for args, expected in ((["describe", name], rb"\u65e5"), (["describe", name, "--json"], name.encode())):
        process = start(*args, PYTHONIOENCODING="latin-1", PYTHONUTF8="1", STATELOG_BOOTSTRAP="b:1", STATELOG_ROOT="/x")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, err
        assert expected in err


@pytest.mark.parametrize(
    ("command", "delay_s"),
    [("describe", 0.0), ("describe", 0.05), ("describe", 0.2), ("describe", 0.4), ("watch", 4.0)],
)
def test_ctrl_c_while_it_loads_is_130(command: str, delay_s: float, tmp_path: Path) -> None:
    """A real SIGINT during the imports, or during a wait for brokers, leaves no traceback."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / DESCRIPTOR_PATH).write_bytes(EXAMPLES["descriptor"].data)  # The command waits for this.
    process = start(command, "x", STATELOG_BOOTSTRAP="127.0.0.1:1", STATELOG_ROOT=str(tmp_path))
    assert process.stderr is not None
    assert process.stderr.readline() == b"begun\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


class _Swallowed(Interrupt):
    """An interrupt that was pressed while a library was imported, and that the library swallowed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = True


def test_an_error_after_a_swallowed_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A swallowed Ctrl-C still ends the command with 130, whatever error follows."""
    monkeypatch.setattr("statelog.cli.program.Interrupt", _Swallowed)
    result = CliRunner().invoke(program, ["describe", "x", "--bootstrap", "127.0.0.1:1", "--root", str(tmp_path)])
    assert (result.exit_code, "NotFound" in result.output) == (130, True)


def test_version_and_help_are_where_people_look() -> None:
    """`--version` and `-h` work as in other programs."""
    assert CliRunner().invoke(program, ["--version"]).output.startswith("statelog ")
    assert "Look:" in CliRunner().invoke(program, ["-h"]).output
    assert "--at-position" in CliRunner().invoke(program, ["recover", "-h"]).output


def test_json_errors_are_one_object_a_line() -> None:
    """Each line of standard error is one JSON object for programs."""
    result = CliRunner().invoke(program, ["describe", "x", "--json", "--config", "/nowhere.toml"])
    assert [json.loads(line)["error"] for line in result.stderr.splitlines()] == ["NotFound"]
