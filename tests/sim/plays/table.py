"""A fixed story of a table: its incarnations on two machines process an input and commit it, between rounds.

The memory of an incarnation dies with it; its directory stays. Before it goes on, every incarnation checks the opened
state: it is the fold of the input up to `progress`, and no acknowledged commit is missing.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import statelog
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

__all__ = ["INPUT", "MADE", "tell"]

END = 18
INPUT = Puts(keys=5, stride=3, deletes=4)
MADE = LogOptions(partitions=2, key_groups=4)
"""The options of a table's log."""


def tell(scratch: Path, faults: Mapping[int, Kind], *, is_kept: bool, loading: Loading = Loading.FIRST) -> World:
    """Play the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict.

    Where the state is loaded in the background, every other incarnation loads a part of it only.
    """
    world, judge = World(scratch, Nemesis(faults)), InputJudge(INPUT.fold)

    def one(goal: int) -> Callable[[Process], None]:
        return _Life(judge, goal, scratch / "local" if is_kept else None, loading).live

    def two(goal: int) -> Callable[[Process], None]:
        return _Life(judge, goal, None, loading).live

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
        ("end", lambda process: judge.check_end(process.log, END)),
    ]
    with world.listening():
        for name, scene in scenes:
            world.play(name, scene)
            world.bury(name)
            world.rest()
    return world


@dataclass(slots=True)
class _Life:
    """An incarnation that processes the input up to `goal`, in all kinds of commits, and leaves uncommitted changes."""

    judge: InputJudge
    goal: int
    directory: Path | None
    loading: Loading
    commits: list[tuple[int, Pending[LastCommit]]] = field(default_factory=list[tuple[int, Pending[LastCommit]]])

    def live(self, process: Process) -> None:
        """Live once. Raises the table's error."""
        if self.judge.acknowledged >= self.goal:
            return
        crash = stalling(process.world.nemesis.point, 1 if self.goal % 2 else 100)
        recovery = RecoverySettings(holder="table", threads=1, lease_ttl_s=0.2)
        settings = TableSettings(recovery=recovery, loading=self.loading, _tuning=TableTuning(commits_under_way_max=2))
        options = process.table_options(self.directory, settings)
        with process.table_environment(crash).run(lambda: statelog.table(LOG, create=MADE, **options)) as table:
            offset = self.judge.check(table)
            self.commits.clear()
            try:
                self._process(table, offset)
            finally:
                self._hear()

    def _process(self, table: Table[bytes, bytes], offset: int) -> None:
        while offset < self.goal:
            with suppress(KeyError), table.transaction():
                table[b"garbage"] = b"x"
                del table[b"never there"]
            with table.transaction():
                put_all(table, [INPUT.change(offset)])
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
