"""Two concurrent recovery workers, each with half of the key groups, and their joint result."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from demo.failure import DemoFailed
from demo.place import Place, child_environment

__all__ = ["Half", "Recovered", "recover_in_halves"]

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The result of one worker. `total_s`: the time of the recovery, without the start of its process."""

    key_groups: range
    file: Path
    rows: int
    manifest: int
    position: int
    run_rows: int
    run_bytes: int
    tail_changes: int
    tail_bytes: int
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The state by key, the workers, and the seconds from the start of the first process to the end of the last."""

    state: Mapping[str, object]
    halves: Sequence[Half]
    wall_s: float


def recover_in_halves(place: Place, key_groups: int) -> Recovered:
    """Restore all key groups. Raises DemoFailed if a worker fails, warns, or if both restored the same key."""
    middle = key_groups // 2
    started_s = time.monotonic()
    workers = [_Worker(place, part) for part in (range(middle), range(middle, key_groups))]
    halves = [worker.result() for worker in workers]
    wall_s = time.monotonic() - started_s
    state: dict[str, object] = {}
    for half in halves:
        table = pq.read_table(half.file)
        state.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
    if len(state) != sum(half.rows for half in halves):
        raise DemoFailed("the two recovery workers restored some keys twice")
    return Recovered(state=state, halves=halves, wall_s=wall_s)


class _Worker:
    def __init__(self, place: Place, part: range) -> None:
        self._part = part
        self._file = place.directory / f"state-{part.start}-{part.stop}.parquet"
        command = [sys.executable, "-m", "demo.recover_half", place.to_json()]
        self._process = subprocess.Popen(
            [*command, str(part.start), str(part.stop), str(self._file)],
            cwd=place.directory,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> Half:
        try:
            out, err = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
        if self._process.returncode != 0:
            raise DemoFailed(f"a recovery worker ended with {self._process.returncode}:\n{err}")
        done = json.loads(out)
        if done["warnings"]:
            raise DemoFailed(f"a recovery worker warned: {done['warnings']}")
        names = ("rows", "manifest", "position", "run_rows", "run_bytes", "tail_changes", "tail_bytes", "total_s")
        return Half(key_groups=self._part, file=self._file, **{name: done[name] for name in names})
