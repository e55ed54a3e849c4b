"""A fixed story of a table: its incarnations on two machines process an input and commit it, between rounds.

The memory of an incarnation dies with it; its directory stays. Before it goes on, every incarnation checks the opened
state: it is the fold of the input up to `progress`, and no acknowledged commit is missing.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import statelog
from statelog.environment import CrashPoint, Environment
from statelog.log import LogOptions
from statelog.pending import Pending
from statelog.recovery import RecoverySettings
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import Loading, Table, TableSettings
from statelog.tables.setup import TableTuning
from tests.sim.judge import InputJudge
from tests.sim.nemesis import Kind, Nemesis
from tests.sim.source import Puts
from tests.sim.world import LOG, Process, World
from tests.support.rigs.table import stalling
from tests.support.samples.folds import put_all

__all__ = ["INPUT", "MADE", "check_dues", "take", "tell"]

END = 18
INPUT = Puts(keys=5, stride=3, deletes=4)
MADE = LogOptions(partitions=2, key_groups=4)
"""The options of a table's log."""
_LATER_S = 1_000_000
"""Later than every process thinks that it is."""


def tell(
    scratch: Path,
    faults: Mapping[int, Kind],
    *,
    is_kept: bool,
    loading: Loading = Loading.FIRST,
    is_timed: bool = False,
) -> World:
    """Play the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict.

    Where the state is loaded in the background, every other incarnation loads a part of it only.

    `is_timed`: some rows have a due, which comes in the end: then an incarnation deletes them.
    """
    world, judge = World(scratch, Nemesis(faults)), InputJudge(INPUT.fold)
    local = scratch / "local" if is_kept else None

    def one(goal: int) -> Callable[[Process], None]:
        return _Life(judge, goal, local, loading, is_timed=is_timed).live

    def two(goal: int) -> Callable[[Process], None]:
        return _Life(judge, goal, None, loading, is_timed=is_timed).live

    last = InputJudge(_left) if is_timed else judge

    scenes: list[tuple[str, Callable[[Process], object]]] = [
        ("one", one(5)),
        ("one", one(8)),
        ("round", Process.roll_up),
        ("two", two(10)),
        ("one", one(13)),
        ("two", two(14)),
        ("round", Process.roll_up),
        ("round", Process.roll_up),
        ("one", one(END)),
        *([("one", _Life(last, END, local, loading, is_timed=True).end)] if is_timed else []),
        ("end", lambda process: last.check_end(process.log, END)),
    ]
    with world.listening():
        for name, scene in scenes:
            world.play(name, scene)
            world.bury(name)
            world.rest()
    return world


def _due_s(offset: int) -> float | None:
    """Return the due of a row that was put by this message, if it has one."""
    return None if offset % 4 == 1 else _LATER_S + offset


def _dues(end: int) -> dict[bytes, float]:
    """Return the dues of the state after the messages below `end`."""
    found: dict[bytes, float | None] = {}
    for offset in range(end):
        key, value = INPUT.change(offset)
        found[key] = None if value is None else _due_s(offset)
    return {key: due_s for key, due_s in found.items() if due_s is not None}


def take(table: Table[bytes, bytes], offset: int, *, is_timed: bool) -> None:
    """Process the message at an offset; `is_timed`: most rows get a due."""
    (key, value), due_s = INPUT.change(offset), _due_s(offset)
    if value is None or due_s is None or not is_timed:
        put_all(table, [(key, value)])
    else:
        table.put(key, value, due=due_s)


def check_dues(table: Table[bytes, bytes], end: int) -> None:
    """Check the dues of all rows of a table that has processed the messages below `end`."""
    assert {key: due.timestamp() for key in table if (due := table.due(key))} == _dues(end)


def _left(end: int) -> dict[bytes, bytes]:
    """Return what is left of the state once all dues have come."""
    return {key: value for key, value in INPUT.fold(end).items() if key not in _dues(end)}


@dataclass(slots=True)
class _Life:
    """An incarnation that processes the input up to `goal`, in all kinds of commits, and leaves uncommitted changes."""

    judge: InputJudge
    goal: int
    directory: Path | None
    loading: Loading
    is_timed: bool
    commits: list[tuple[int, Pending[LastCommit]]] = field(default_factory=list[tuple[int, Pending[LastCommit]]])

    def live(self, process: Process) -> None:
        """Live once. Raises the table's error."""
        if self.judge.acknowledged >= self.goal:
            return
        with self._open(process, process.table_environment(self._crash(process))) as table:
            offset = self.judge.check(table)
            if self.is_timed:
                check_dues(table, offset)
            self.commits.clear()
            try:
                self._process(table, offset)
            finally:
                self._hear()

    def end(self, process: Process) -> None:
        """Live when every due has come: nobody is shown such a row, and a commit deletes them."""
        environment = replace(process.table_environment(self._crash(process)), wall_clock=lambda: 3.0 * _LATER_S)
        with self._open(process, environment) as table:
            self.judge.check(table)
            assert table.is_local
            table.commit({"offset": END})

    def _crash(self, process: Process) -> CrashPoint:
        return stalling(process.world.nemesis.point, 1 if self.goal % 2 else 100)

    def _open(self, process: Process, environment: Environment) -> Table[bytes, bytes]:
        recovery = RecoverySettings(holder="table", threads=1, lease_ttl_s=0.2)
        settings = TableSettings(recovery=recovery, loading=self.loading, _tuning=TableTuning(commits_under_way_max=2))
        options = process.table_options(self.directory, settings)
        return environment.run(lambda: statelog.table(LOG, create=MADE, **options))

    def _process(self, table: Table[bytes, bytes], offset: int) -> None:
        while offset < self.goal:
            with suppress(KeyError), table.transaction():
                table[b"garbage"] = b"x"
                del table[b"never there"]
            with table.transaction():
                take(table, offset, is_timed=self.is_timed)
            offset += 1
            if offset % 2 or offset == self.goal:
                self.commits.append((offset, table.commit_async({"offset": offset})))
                assert dict(table.items()) == INPUT.fold(offset)
                table[b"garbage"] = b"never committed"
                table.rollback()
        for _, commit in self.commits:
            commit.result()

    def _hear(self) -> None:
        """Record the acknowledgements so far."""
        for offset, commit in self.commits:
            if commit.is_over and "failed" not in repr(commit):
                self.judge.hear(offset)
