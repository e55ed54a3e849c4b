"""The broker's process: detached from its starter, recognised later, ended reliably.

A process is identified by its id and its start time, because ids are reused. Owns only the log file that the process
writes. Works on processes of other parents: `statelog dev stop` is not the process that started the broker.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from statelog.errors import StatelogError, Unavailable

_KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """The identity of a process: `started` is its start time in this system's own unit."""

    pid: int
    started: str


def spawn(command: Sequence[str], directory: Path, log: Path) -> ProcessId:
    """Start `command` in `directory`, in a session of its own, with its output appended to `log`.

    The session keeps the terminal's Ctrl-C and hang-up, which are meant for the starter, from the broker.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - the arguments are the broker's own
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # The child outlives this object on purpose; setting an exit code keeps Python from warning about it.
    child.returncode = 0
    found = identify(child.pid)
    if found is None:
        raise Unavailable("the broker's process ended at once", log=str(log))
    return found


def identify(pid: int) -> ProcessId | None:
    """Return the process with this id; None if there is none, or only a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # Collects a dead child of this process.
    started = _start_time(pid)
    return None if started is None else ProcessId(pid=pid, started=started)


def is_alive(process: ProcessId) -> bool:
    """Tell whether this process exists, and not a later one with the same id."""
    return identify(process.pid) == process


def end(process: ProcessId, timeout_s: float) -> bool:
    """End a process by SIGTERM, or by SIGKILL after `timeout_s` seconds. Returns whether SIGTERM ended it."""
    was_there = is_alive(process)
    _signal(process, signal.SIGTERM)
    # A stopped process acts on SIGTERM only once it runs again.
    _signal(process, signal.SIGCONT)
    if wait_for(lambda: not is_alive(process), timeout_s):
        return was_there
    kill(process)
    return False


def kill(process: ProcessId) -> None:
    """Kill a process, and wait until it has ended."""
    _signal(process, signal.SIGKILL)
    if not wait_for(lambda: not is_alive(process), _KILL_TIMEOUT_S):
        raise StatelogError("the broker's process does not die", hint="Find out what it waits for", pid=process.pid)


def tail(log: Path, lines: int = 5) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return " | ".join(text.splitlines()[-lines:])


def _signal(process: ProcessId, number: int) -> None:
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _start_time(pid: int) -> str | None:
    if not Path("/proc/self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Fields after the program's name: 0 is the state, 19 the start time in clock ticks since boot.
    return None if fields[0] in {"Z", "X"} else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    """Read the start time on systems without /proc."""
    listed = subprocess.run(  # noqa: S603 - fixed arguments and a number
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - where ps lies differs between systems
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    return None if len(listed) < 2 or listed[0].startswith("Z") else listed[1].strip()


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    *,
    pause_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until `condition` is true, and return True; False after `timeout_s` seconds. Checks at least once."""
    deadline = clock() + timeout_s
    while not condition():
        if clock() >= deadline:
            return False
        sleep(pause_s)
    return True
