"""A fixed story of a table: its lives on two machines process an input and commit it, while the log is rolled up.

What a life holds in memory dies with it; its directory stays. Every life checks, before it goes on, that what it opened
is the fold of the input up to `progress`, and that no acknowledged commit is missing.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import statelog
from statelog.materializer.round.outcome import CompletedRound, SkippedRound
from statelog.materializer.round.round import Round
from statelog.recovery import Host, RecoverySettings, recover
from statelog.seams import Seams
from statelog.tables import Loading, Table, TableCommit, TableSettings
from tests.support.rigs.log import UNSAFE, settings_for
from tests.support.rigs.table import stalling
from tests.support.story.nemesis import Kind, Nemesis
from tests.support.story.world import LOG, Process, World
from tests.support.told import lines
from tests.support.worlds.stepper import SteppedKafka

__all__ = ["TableTold", "change", "fold", "tell"]

END = 18
_KEYS = 5


def change(offset: int) -> tuple[bytes, bytes | None]:
    """The input's change at an offset: puts over a few keys, now and then a delete."""
    return b"k%d" % (offset * 3 % _KEYS), None if offset % 4 == 3 else b"%d" % offset


def fold(end: int) -> dict[bytes, bytes]:
    """The state after the input below `end`."""
    state: dict[bytes, bytes] = {}
    for offset in range(end):
        key, value = change(offset)
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state


class TableTold(NamedTuple):
    """A story that was told: its world, and the lines and warnings that came out."""

    world: World
    told: list[str]


@dataclass(slots=True)
class _Told:
    """What was acknowledged so far: the highest offset of the input that a commit named."""

    offset: int = 0
    commits: list[tuple[int, TableCommit]] = field(default_factory=list[tuple[int, TableCommit]])

    def hear(self) -> None:
        """Take what has come in."""
        for offset, commit in self.commits:
            if commit.is_over and "failed" not in repr(commit):
                self.offset = max(self.offset, offset)


def tell(scratch: Path, faults: Mapping[int, Kind], *, is_kept: bool, loading: Loading = Loading.FIRST) -> TableTold:
    """Tell the story with these faults, by number of the operation; `is_kept`: in RocksDB, else in a dict. Where the
    state is loaded behind the table's back, every other life loads a part of it only.
    """
    nemesis = Nemesis(faults)
    world = World(scratch, nemesis)
    heard = _Told()
    directory = scratch / "local" if is_kept else None
    scenes: list[tuple[str, Callable[[Process], None]]] = [
        ("one", lambda process: _live(process, heard, 5, directory, loading)),
        ("one", lambda process: _live(process, heard, 8, directory, loading)),
        ("round", _round),
        ("two", lambda process: _live(process, heard, 10, None, loading)),
        ("one", lambda process: _live(process, heard, 13, directory, loading)),
        ("two", lambda process: _live(process, heard, 14, None, loading)),
        ("round", _round),
        ("round", _round),
        ("one", lambda process: _live(process, heard, END, directory, loading)),
        ("end", _check_end),
    ]
    with lines() as logged, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, scene in scenes:
            world.play(name, scene)
            world.bury(name)
            world.disk.settle()
            world.now_s += 2
    assert heard.offset <= END
    return TableTold(world, [*logged, *(str(one.message) for one in caught)])


def _live(process: Process, heard: _Told, goal: int, directory: Path | None, loading: Loading) -> None:
    """One life: process the input up to `goal`, in commits of every kind, and leave something uncommitted."""
    world = process.world
    if heard.offset >= goal:
        return
    host = Host(
        clock=process.tick,
        wall_clock=process.clock,
        nonce=world.nonce,
        crash=stalling(world.nemesis.point, 1 if goal % 2 else 100),
        start=lambda work: work(),
        disk=world.nemesis.disk_hook,
    )
    kafka = SteppedKafka(cluster=world.cluster)  # Its own: a table that ends closes its clients.
    kafka.stepper = world.stepper
    where: dict[str, Any] = {"kafka": kafka, "root": process.store, "allow_unsafe": UNSAFE, "host": host}
    if directory is not None:
        where |= {"backend": "rocksdb", "directory": directory}
    made: dict[str, Any] = {"create": True, "replication_factor": 1, "partitions": 2, "key_groups": 4}
    recovery = RecoverySettings(holder="table", threads=1, lease_ttl_s=0.2)
    settings = TableSettings(commits_under_way_max=2, recovery=recovery, loading=loading)
    with statelog.table(LOG, settings=settings, **made, **where) as table:
        offset = int(table.progress.get("offset", 0))
        assert offset >= heard.offset, f"an acknowledged commit is gone: {offset} < {heard.offset}"
        assert dict(table.items()) == fold(offset), f"not the state at {offset}"
        heard.commits.clear()
        try:
            _process(table, heard, offset, goal)
        finally:
            heard.hear()


def _process(table: Table[bytes, bytes], heard: _Told, offset: int, goal: int) -> None:
    while offset < goal:
        with suppress(KeyError), table.transaction():
            table[b"garbage"] = b"x"
            del table[b"never there"]
        with table.transaction():
            key, value = change(offset)
            table.delete(key) if value is None else table.put(key, value)
        offset += 1
        if offset % 2 or offset == goal:
            heard.commits.append((offset, table.commit_async({"offset": offset})))
            assert dict(table.items()) == fold(offset)
            table[b"garbage"] = b"never committed"
            table.rollback()
    for _, commit in heard.commits:
        commit.result()


def _round(process: Process) -> None:
    world = process.world
    seams = Seams(wall_clock=process.clock, nonce=world.nonce)
    outcome = Round(
        process.log, settings_for(world.scratch), seams=seams, verified=process.verified, disk=world.nemesis.disk_hook
    ).run()
    assert isinstance(outcome, CompletedRound | SkippedRound)


def _check_end(process: Process) -> None:
    with recover(process.log, settings=RecoverySettings(threads=1)) as recovery:
        assert recovery.to_dict() == fold(END)
        last = recovery.last_commit("table")
    assert last is not None
    assert last.metadata == {"offset": END}
