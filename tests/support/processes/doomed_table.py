"""A process that processes an input into a table, and kills itself with SIGKILL at a named point, or is killed.

The input is numbered; each life goes on from the table's progress. It checks what it opens against the fold of the
input, and prints nothing: a state that is not the fold ends it with another code.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import statelog
from statelog.recovery import Host
from statelog.tables import TableSettings
from tests.support.processes.doomed_writer import NEVER, change, fold
from tests.support.rigs.log import UNSAFE

__all__ = ["WRONG"]

WRONG = 3
"""The exit code of a life that found another state than the fold of the input up to its progress."""
_PER_COMMIT = 20


def main() -> None:
    """One life."""
    parser = argparse.ArgumentParser()
    for name in ("log", "bootstrap", "root", "local", "point"):
        parser.add_argument(name)
    parser.add_argument("times", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--loading", default="first")
    given = parser.parse_args()
    left = given.times

    def crash(passed: str) -> None:
        nonlocal left
        left -= passed == given.point
        if left == 0 and given.point != NEVER:
            os.kill(os.getpid(), signal.SIGKILL)

    where: dict[str, Any] = {
        "kafka": {"bootstrap.servers": given.bootstrap},
        "root": given.root,
        "allow_unsafe": UNSAFE,
    }
    if given.local != NEVER:
        where |= {"backend": "rocksdb", "directory": Path(given.local)}
    host = Host(crash=crash)
    settings = TableSettings(commits_under_way_max=3, loading=given.loading)
    with statelog.table(given.log, host=host, settings=settings, **where) as table:
        position = int(table.progress.get("position", 0))
        if dict(table.items()) != fold(position):
            raise SystemExit(WRONG)
        for now in range(position, given.end):
            key, value = change(now)
            table.delete(key) if value is None else table.put(key, value)
            if now % _PER_COMMIT == _PER_COMMIT - 1:
                table.commit_async({"position": now + 1})
            else:
                table.commit_every(0.5, {"position": now + 1})


if __name__ == "__main__":
    main()
