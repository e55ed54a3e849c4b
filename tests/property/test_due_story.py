"""A table whose rows expire, through 1,000 random steps, equals a plain program with the same clock.

The clock jumps, also back. The table is killed and opened again, in a dict and in RocksDB, whole and while it loads a
snapshot; a standby takes it over; rounds make snapshots. The plain program is a dict from key to value and due.

What a commit deletes is checked in the log: of the rows that are due no other row, and if the table is local, all.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from statelog.environment import Environment, inline
from statelog.recovery import RecoverySettings
from statelog.store.run_writer import RunWriter
from statelog.tables import Loading, Standby, Table, TableSettings
from statelog.testing.cluster import MemoryCluster
from statelog.testing.store import MemoryDisk
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig, content, stalling
from tests.support.told import lines

KEYS = [b"", *(b"k%d" % n for n in range(12)), b"\xff"]
TTL_S = 20
_FIRST_S = 1_000
_RECOVERY = RecoverySettings(threads=1, lease_ttl_s=15.0)

Rows = dict[bytes, tuple[bytes, int | None]]

pytestmark = pytest.mark.usefixtures("impatient")


class Way(NamedTuple):
    """Where the state is, and whether every put has a due."""

    is_kept: bool
    has_ttl: bool

    def __str__(self) -> str:
        return f"{'rocksdb' if self.is_kept else 'dict'}-{'ttl' if self.has_ttl else 'some'}"


WAYS = [Way(is_kept, has_ttl) for is_kept in (False, True) for has_ttl in (False, True)]


@dataclass(slots=True)
class Plain:
    """The plain program: its rows, those of the last commit, and the keys that were changed since."""

    rows: Rows = field(default_factory=Rows)
    committed: Rows = field(default_factory=Rows)
    changed: set[bytes] = field(default_factory=set[bytes])
    now_ms: int = 0
    """The time that it has seen, which does not go back in one life."""

    def put(self, key: bytes, value: bytes | None, due_ms: int | None = None) -> None:
        """Put or delete a row."""
        self.changed.add(key)
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = value, due_ms

    def see(self, wall_s: int) -> None:
        """Look at the clock."""
        self.now_ms = max(self.now_ms, wall_s * 1000)

    def is_due(self, row: tuple[bytes, int | None]) -> bool:
        """Return whether a row is due."""
        return row[1] is not None and row[1] <= self.now_ms

    def shown(self) -> dict[bytes, bytes]:
        """Return what its owner sees."""
        return {key: row[0] for key, row in self.rows.items() if not self.is_due(row)}

    def sweepable(self) -> set[bytes]:
        """Return the rows that the next commit deletes."""
        return {key for key, row in self.rows.items() if key not in self.changed and self.is_due(row)}

    def commit(self, swept: set[bytes]) -> None:
        """Make the changes history, and the deletes of these rows."""
        self.rows = {key: row for key, row in self.rows.items() if key not in swept}
        self.committed, self.changed = dict(self.rows), set()

    def undo(self) -> None:
        """Forget the changes since the last commit."""
        self.rows, self.changed = dict(self.committed), set()


class Story:
    """One table through all of its lives, and the plain program beside it."""

    def __init__(self, scratch: Path, way: Way, seed: int) -> None:
        self.chance, self.scratch, self.way = random.Random(seed), scratch, way
        self.wall_s, self.number, self.lives = _FIRST_S, 0, 0
        rig = twin_rig("log", cluster=MemoryCluster(), disk=MemoryDisk(lambda: 0.0))
        self.rig, self.plain = rig, Plain()
        self.tables = TableRig(rig, scratch / "local" if way.is_kept else None)
        self.standby: Standby[Any, Any] | None = None
        self.table = self.open(self.tables)
        self.put(b"last", self.wall_s * 100)  # From here on the table always looks at the clock.
        self.commit()

    def open(self, tables: TableRig) -> Table[Any, Any]:
        """Open the next life of the table: what is committed, and a clock of its own."""
        loading = self.chance.choice([Loading.FIRST, Loading.BEHIND])
        groups = self.chance.choice([1, 3, 100]) if loading is Loading.BEHIND else 100
        more: dict[str, Any] = {"ttl_s": TTL_S} if self.way.has_ttl else {}
        settings = TableSettings(recovery=_RECOVERY, loading=loading)
        self.begin_life()
        return tables.open(settings=settings, environment=self.environment(groups), **more)

    def begin_life(self) -> None:
        """Begin with what is committed, and with the clock as it is."""
        self.plain.undo()
        self.plain.now_ms = self.wall_s * 1000

    def environment(self, groups: int = 100) -> Environment:
        """Return an environment with the clock of the story."""
        return Environment(
            clock=lambda: float(self.wall_s),
            wall_clock=lambda: float(self.wall_s),
            start=inline,
            crash=stalling(lambda _: None, groups),
        )

    # ---- steps

    def some_key(self) -> bytes:
        """Return a key."""
        return self.chance.choice(KEYS)

    def put(self, key: bytes, due_s: int | None = None) -> None:
        """Put a row, with this due or with that of the log."""
        self.number += 1
        self.plain.see(self.wall_s)
        value, due_ms = b"%d" % self.number, None if due_s is None else due_s * 1000
        self.table.put(key, value, due=due_s)
        if due_ms is None and self.way.has_ttl:
            due_ms = self.plain.now_ms + TTL_S * 1000
        self.plain.put(key, value, due_ms)

    def put_some(self) -> None:
        """Put a row: mostly with a due that comes soon, sometimes with one that has passed, or without."""
        chance = self.chance.random()
        due_s = None if chance < 0.3 else self.wall_s + self.chance.randint(-5, 40)
        self.put(self.some_key(), due_s)

    def delete(self) -> None:
        """Delete a key, there or not."""
        key = self.some_key()
        self.table.delete(key)
        self.plain.put(key, None)

    def pass_time(self) -> None:
        """Let time pass."""
        self.wall_s += self.chance.choice([1, 3, 10])

    def jump(self) -> None:
        """Set the clock to another time, mostly an earlier one."""
        self.wall_s = max(_FIRST_S, self.wall_s + self.chance.choice([-100, -30, -10, 60]))

    def commit(self) -> None:
        """Commit, and check what lies in the log."""
        self.plain.see(self.wall_s)
        self.number += 1
        self.table.commit({"number": self.number})
        self.committed(is_exact=self.table.is_local)

    def committed(self, *, is_exact: bool) -> None:
        """Check what a commit has made of the rows in the log, and go on from there."""
        found, due = self.rig.state(), self.plain.sweepable()
        swept = due - found.keys()
        assert swept == due or not is_exact
        self.plain.commit(swept)
        assert found == {key: row[0] for key, row in self.plain.rows.items()}

    def undo(self) -> None:
        """Undo the changes since the last commit."""
        self.table.rollback()
        self.plain.undo()

    def transaction(self) -> None:
        """Run a block that ends well, or is undone."""
        rows, changed, number = dict(self.plain.rows), set(self.plain.changed), self.number
        is_undone = self.chance.random() < 0.5
        with suppress(KeyError), self.table.transaction():
            self.put_some()
            self.delete()
            if is_undone:
                raise KeyError
        if is_undone:
            self.plain.rows, self.plain.changed, self.number = rows, changed, number

    def kill(self) -> None:
        """Kill the process; the next one has the directory, or is on another machine."""
        self.die()
        tables = self.tables if self.chance.random() < 0.8 else TableRig(self.rig, None)
        self.table = self.open(tables)

    def die(self) -> None:
        """Drop the table as the memory of a process is dropped."""
        with pytest.raises(RuntimeError), self.table:
            raise RuntimeError

    def restart(self) -> None:
        """Close the table, and open it again."""
        self.table.rollback()
        self.plain.undo()
        self.plain.see(self.wall_s)
        self.table.close()
        self.committed(is_exact=False)
        self.table = self.open(self.tables)

    def follow(self) -> None:
        """Have a standby follow: it shows what is committed, due or not."""
        if self.standby is None:
            self.lives += 1
            self.standby = self.tables.standby(f"standby-{self.lives}", environment=self.environment())
        self.standby.refresh()
        assert content(self.standby) == {key: row[0] for key, row in self.plain.committed.items()}

    def take_over(self) -> None:
        """Have the standby take over from the owner, which has died or will learn it."""
        self.follow()
        assert self.standby is not None
        promoted, self.standby = self.standby.promote(), None
        self.begin_life()
        self.die()
        self.table = promoted
        if self.way.is_kept:
            self.tables = TableRig(self.rig, self.scratch / f"standby-{self.lives}")

    def roll_up(self) -> None:
        """Run a round."""
        self.tables.roll_up(self.scratch)

    # ---- the judge

    def check(self) -> None:
        """Compare everything that the table shows."""
        self.plain.see(self.wall_s)
        shown, key = self.plain.shown(), self.some_key()
        assert content(self.table) == shown
        assert len(self.table) == len(shown)
        assert (self.table.get(key), key in self.table) == (shown.get(key), key in shown)
        due_ms = self.plain.rows[key][1] if key in shown else None
        due = self.table.due(key)
        assert (None if due is None else due.timestamp() * 1000) == due_ms
        ordered = sorted(shown.items())
        reverse = self.chance.random() < 0.5
        assert list(self.table.range(key, None, reverse=reverse)) == [
            one for one in ordered[:: -1 if reverse else 1] if one[0] >= key
        ]
        assert list(self.table.prefix(b"k")) == [one for one in ordered if one[0].startswith(b"k")]

    def run(self, steps: int) -> None:
        """Take so many random steps, and check the table after each of them; then let everything expire."""
        acts: dict[Callable[[], None], int] = {
            self.put_some: 40,
            self.delete: 8,
            self.pass_time: 18,
            self.jump: 4,
            self.commit: 14,
            self.undo: 2,
            self.transaction: 4,
            self.kill: 4,
            self.restart: 1,
            self.follow: 2,
            self.take_over: 1,
            self.roll_up: 2,
        }
        for _ in range(steps):
            self.chance.choices(list(acts), list(acts.values()))[0]()
            self.check()
        self.end()

    def end(self) -> None:
        """Let everything expire that has a due: what is left is what has none."""
        self.die()
        self.table = self.open(TableRig(self.rig, None))
        left = {key: row[0] for key, row in self.plain.rows.items() if row[1] is None}
        self.wall_s *= 1000
        self.check()
        assert content(self.table) == left
        self.table.commit({"number": self.number})
        self.table.close()


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write runs of which a table loads a part at a time."""
    monkeypatch.setitem(cast("dict[str, Any]", RunWriter.__init__.__kwdefaults__), "target_rows", 2)


def _tell(tmp_path: Path, way: Way, seed: int, steps: int) -> None:
    with lines():  # A directory that is behind truncation is set aside, with a warning.
        Story(tmp_path, way, seed).run(steps)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_story_of_rows_that_expire(tmp_path: Path, way: Way) -> None:
    """Any steps agree with the plain program: some in every run of the tests."""
    _tell(tmp_path, way, seed=1, steps=250)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_long_stories(tmp_path: Path, way: Way, seed: int) -> None:
    """Many steps agree with the plain program, too."""
    _tell(tmp_path, way, seed, steps=1_000)
