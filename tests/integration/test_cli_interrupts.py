"""Ctrl-C in `statelog append`: real signals at several moments; reported rows count, nothing is lost or doubled."""

import json
import os
import signal
import subprocess
import sys
import time
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from tests.support.rigs.shell import Shell, write_lines, writer_row
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker


def _unread_bytes(pipe: int) -> int:
    """Return the unread bytes of a pipe."""
    return int.from_bytes(ioctl(pipe, FIONREAD, bytes(4)), sys.byteorder)


def test_ctrl_c_says_where_it_stands(shell: Shell) -> None:
    """SIGINT while a pipe is open exits with 130, and the reported rows are exactly the valid ones."""
    process = shell.start(
        "append", shell.name, "-", "--writer", "pipe", "--checkpoint-every", 2, "--json", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    for number in range(5):
        process.stdin.write(json.dumps({"key": f"k{number}", "value": "v"}) + "\n")
    process.stdin.flush()
    wait_for(lambda: (row := writer_row(shell, "pipe")) is not None and row["checkpoint"] == 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)

    assert process.returncode == 130
    told = json.loads(out.splitlines()[-1])
    assert (told["outcome"], told["rows"]) == ("interrupted", 4)
    assert set(shell.state()) == {"k0", "k1", "k2", "k3"}


def test_ctrl_c_at_any_moment_of_a_load_is_told(shell: Shell, tmp_path: Path) -> None:
    """Signals into loads that commit all the time exit with 130, no traceback, and a report of at least valid rows.

    The next run goes on exactly.
    """
    rows: list[dict[str, object]] = [{"key": f"k{n}", "value": str(n)} for n in range(60_000)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    counted = 0
    for wait_s in (0.0, 0.171, 0.333):
        before = counted
        process = shell.start("append", shell.name, source, "--checkpoint-every", 25, "--json")
        wait_for(lambda: (row := writer_row(shell, "in")) is not None and row["checkpoint"] * 25 > before)  # noqa: B023 - called at once
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        told = json.loads(out.splitlines()[-1])
        assert told["outcome"] == "interrupted"
        row = writer_row(shell, "in")
        assert row is not None
        counted = row["checkpoint"] * 25
        assert before < told["rows_before"] + told["rows"] <= counted <= told["rows_before"] + told["rows"] + 25
    assert counted < len(rows), "there was always something left to interrupt"
    assert shell.run("append", shell.name, source, "--checkpoint-every", 30_000).exit_code == 0
    assert shell.state() == {row["key"]: {"value": row["value"]} for row in rows}


def test_ctrl_c_while_it_compares_tells_what_counts(shell: Shell, tmp_path: Path) -> None:
    """Ctrl-C while an input is compared with its commits reports the valid rows, which are known before."""
    data = "".join(json.dumps({"key": f"k{n}", "value": "v"}) + "\n" for n in range(4))
    assert shell.run("append", shell.name, "-", "--writer", "pipe", stdin=data.encode()).exit_code == 0
    os.mkfifo(tmp_path / "fifo")
    process = shell.start("append", shell.name, tmp_path / "fifo", "--writer", "pipe", "--json")
    with (tmp_path / "fifo").open("wb", buffering=0) as fifo:
        fifo.write(data[:1].encode())
        wait_for(lambda: _unread_bytes(fifo.fileno()) == 0)  # It has begun to compare, and waits for the other bytes.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    told = json.loads(out.splitlines()[-1])
    assert (told["outcome"], told["rows"], told["rows_before"], told["checkpoint"]) == ("interrupted", 0, 4, 1)
