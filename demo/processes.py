"""Processes of this machine: their parents and states. Signals only processes that are given by id.

Reads /proc if there is one, else runs `ps`.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from demo.failure import DemoFailed
from statelog.testing.process import wait_for

__all__ = ["Row", "alive", "children_of", "process_table", "resume", "start", "stop", "wait_until"]

_TICK_S = 0.002
_STOP_TIMEOUT_S = 10.0


class Row(NamedTuple):
    """A process: its parent, and its state as one letter (T: stopped, Z: zombie)."""

    parent: int
    state: str


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, stdin: int
) -> "subprocess.Popen[bytes]":
    """Start a process in the directory of its log, which gets all its output."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=log.parent, env=environment, stdin=stdin, stdout=output, stderr=subprocess.STDOUT
        )


def process_table() -> Mapping[int, Row]:
    """Return all processes by id."""
    return _by_proc() if Path("/proc/self/stat").exists() else _by_ps()


def children_of(parents: Iterable[int], table: Mapping[int, Row]) -> tuple[int, ...]:
    """Return the living children of these processes."""
    wanted = set(parents)
    return tuple(pid for pid, row in sorted(table.items()) if row.parent in wanted and row.state != "Z")


def alive(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the processes of `pids` that still live."""
    table = process_table()
    return tuple(pid for pid in pids if pid in table and table[pid].state not in "ZX")


def stop(pids: Iterable[int]) -> None:
    """Send SIGSTOP, and wait until all living processes have stopped."""
    waiting = tuple(pids)
    _signal(waiting, signal.SIGSTOP)

    def stopped() -> bool:
        table = process_table()
        return all(table[pid].state in "TtZX" for pid in waiting if pid in table)

    wait_until(stopped, _STOP_TIMEOUT_S, "the Spark processes do not stop")


def resume(pids: Iterable[int]) -> None:
    """Send SIGCONT."""
    _signal(pids, signal.SIGCONT)


def wait_until(condition: Callable[[], bool], timeout_s: float, complaint: str, *, tick_s: float = _TICK_S) -> float:
    """Wait for `condition`, and return the seconds. Raises DemoFailed with `complaint` after `timeout_s`."""
    started_s = time.monotonic()
    if not wait_for(condition, timeout_s, pause_s=tick_s):
        raise DemoFailed(f"{complaint} (waited for {timeout_s:.0f} s)")
    return time.monotonic() - started_s


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _by_proc() -> dict[int, Row]:
    table: dict[int, Row] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            # The program's name, in brackets, may contain anything; the fields after it are plain.
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        table[int(path.name)] = Row(parent=int(fields[1]), state=fields[0])
    return table


def _by_ps() -> dict[int, Row]:
    said = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in said.splitlines())
    return {int(pid): Row(parent=int(parent), state=state[0]) for pid, parent, state in lines}
