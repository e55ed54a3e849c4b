"""CPU seconds of processes, as Linux counts them: in ticks of a hundredth of a second."""

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["TICK_S", "family_cpu_s", "process_cpu_s"]

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class _Counted(NamedTuple):
    """The entry of one process in `/proc`: its parent, its own ticks, and those of the children that it waited for."""

    parent: int
    own: int
    of_children: int


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of one process so far, including all its threads."""
    return _counted(Path("/proc", str(pid))).own * TICK_S


def family_cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants. An ended child counts with its parent."""
    found: dict[int, _Counted] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = _counted(entry)
            except OSError:  # It ended meanwhile.
                continue
    return sum(one.own + one.of_children for pid, one in found.items() if _descends(pid, found)) * TICK_S


def _counted(entry: Path) -> _Counted:
    fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return _Counted(int(fields[1]), sum(map(int, fields[11:13])), sum(map(int, fields[13:15])))


def _descends(pid: int, found: dict[int, _Counted]) -> bool:
    while pid != os.getpid():
        if pid not in found:
            return False
        pid = found[pid].parent
    return True
