"""Timers of a table that is killed at any step equal those of a plain program: each runs once, and never early.

A timer puts a row that names it, in the commit that ends its due. So a timer that ran twice, or not at all, is seen in
the committed state. Some timers delete their row, some leave it, some set themselves again, some set another one.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import statelog
from statelog import LogOptions
from statelog.recovery import read
from statelog.tables import Table
from statelog.testing import Crash, StillClock, Twin, crash_at, environment

POINTS = ("sealed", "commit-made", "committed", "history", "applied")
KEYS = [f"k{n}" for n in range(8)]
STEPS = 150

Rows = dict[str, tuple[bytes, float | None]]


@dataclass(slots=True)
class _Plain:
    """The plain program: its rows with their dues, and which timers ran."""

    rows: Rows = field(default_factory=Rows)

    def put(self, key: str, value: bytes, due: float | None = None) -> None:
        """Put a row."""
        self.rows[key] = value, due

    def delete(self, key: str) -> None:
        """Delete a row, there or not."""
        self.rows.pop(key, None)

    def due(self, now_s: float) -> list[str]:
        """Return the keys that are due, the oldest first."""
        dues = {key: due for key, (_, due) in self.rows.items() if due is not None and due <= now_s}
        return sorted(dues, key=dues.__getitem__)


def _act(table: Any, key: str, value: bytes, now_s: float) -> None:
    """Do what a timer does, to a table or to the plain program."""
    table.put(f"ran/{value.decode()}", b"%d" % now_s)
    number = int(value.split(b".")[0])
    match number % 4:
        case 0:
            table.delete(key)
        case 1:
            table.put(key, value + b".1", due=now_s + 7)
        case 2:
            table.put(KEYS[number % len(KEYS)], b"%d.2" % (number + 1), due=now_s - 3)
        case _:
            pass


class _Story:
    """One table through all of its lives, and the plain program beside it."""

    def __init__(self, seed: int, directory: Path | None) -> None:
        self.chance, self.twin, self.clock = random.Random(seed), Twin(), StillClock(1e9)
        self.local: dict[str, Any] = {} if directory is None else {"backend": "rocksdb", "directory": directory}
        self.number = self.commits = 0
        self.plain = _Plain()
        self.table = self.open()
        self.commit()

    def open(self, point: str = "") -> Table[str, bytes]:
        """Open the next life, which dies at the point of a later commit, if any."""
        parts: dict[str, Any] = {"crash": crash_at(point, self.chance.randint(1, 4))} if point else {}
        with environment(wall_clock=self.clock, **parts):
            options = LogOptions(key_type="string")
            return statelog.table("log", self.twin.where(), create=options, **self.local)

    def put(self) -> None:
        """Put a row: mostly a timer, also one that has passed."""
        self.number += 4 if self.chance.random() < 0.2 else 1
        due = None if self.chance.random() < 0.2 else self.clock() + self.chance.randint(-5, 30)
        key, value = self.chance.choice(KEYS), b"%d" % self.number
        self.table.put(key, value, due=due)
        self.plain.put(key, value, due)

    def pass_time(self) -> None:
        """Let time pass."""
        self.clock.advance(self.chance.choice([1, 5, 20]))

    def run(self) -> None:
        """Run what is due, by the table and by the plain program, which has the same rows due."""
        now_s, most = self.clock(), self.chance.choice([1, 3, 100])
        ran: list[tuple[str, bytes]] = []

        def call(table: Table[str, bytes], key: str, value: bytes) -> None:
            ran.append((key, value))
            _act(table, key, value, now_s)

        due = self.plain.due(now_s)
        dues = {key: self.plain.rows[key][1] for key in due}
        assert self.table.run_due(call, most) == len(ran) >= min(1, len(due))
        assert [dues[key] for key, _ in ran] == sorted(dues[key] for key, _ in ran)  # type: ignore[type-var]  # no None
        for key, value in ran:
            assert self.plain.rows[key] == (value, dues[key])
            self.plain.put(key, value)
            _act(self.plain, key, value, now_s)

    def fail(self) -> None:
        """Let a timer raise: nothing of it stays."""

        def call(table: Table[str, bytes], key: str, value: bytes) -> None:
            _act(table, key, value, self.clock())
            raise ZeroDivisionError

        with suppress(ZeroDivisionError):
            self.table.run_due(call)

    def undo(self) -> None:
        """Undo the changes since the last commit."""
        self.table.rollback()
        self.plain.rows = dict(self.committed)

    def commit(self) -> None:
        """Commit, or die in it. The next life has that commit or the one before."""
        self.commits += 1
        try:
            self.table.commit({"n": self.commits})
        except Crash:
            self.die(is_committed=None)
        else:
            self.committed = dict(self.plain.rows)

    def die(self, *, is_committed: bool | None = False) -> None:
        """Kill the process, and open the next life."""
        self.table.__exit__(RuntimeError, None, None)
        self.table = self.open(self.chance.choice(["", "", *POINTS]))
        if is_committed is None and self.table.progress["n"] == self.commits:
            self.committed = dict(self.plain.rows)
        self.plain.rows = dict(self.committed)

    def check(self) -> None:
        """Compare what the owner sees, and what everybody else sees."""
        now_s = self.clock()
        alive = {key: value for key, (value, due) in self.plain.rows.items() if due is None or due > now_s}
        assert dict(self.table) == alive
        assert len(self.table) == len(alive)
        assert read("log", self.twin.where()).to_dict() == {key: row[0] for key, row in self.committed.items()}

    def play(self) -> None:
        """Take random steps."""
        steps: list[Callable[[], None]] = [self.put, self.put, self.put, self.pass_time, self.run, self.run]
        steps += [self.commit, self.commit, self.fail, self.undo, self.die]
        self.table.run_due(print)
        for _ in range(STEPS):
            was = self.table
            self.chance.choice(steps)()
            if self.table is not was:
                self.run()  # A table has timers from its first call on.
            self.check()
        self.table.__exit__(RuntimeError, None, None)
        assert sum(key.startswith("ran/") for key in self.committed) > STEPS // 20


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
@pytest.mark.parametrize("backend", ["dict", "rocksdb"])
def test_timers_run_once_through_all_lives(backend: str, seed: int, tmp_path: Path) -> None:
    """Whatever is killed, undone or raised, a timer's effect is in the state once, together with the end of its due."""
    _Story(seed, tmp_path / "local" if backend == "rocksdb" else None).play()
