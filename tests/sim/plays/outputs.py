"""A fixed story of a table that sends: its incarnations on two machines process an input, between rounds that truncate.

Each message of the input puts a row and sends a message. In the end a committed reader has seen the message of each one
once, in the order of its partition; at any time it has seen a beginning of that, and nothing that is not history.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import statelog
from statelog.kafka.port import TopicSpec
from statelog.recovery import RecoverySettings
from statelog.schemas.outputs.output import Output
from statelog.tables import Table, TableSettings
from statelog.tables.setup import TableTuning
from tests.sim.judge import InputJudge
from tests.sim.nemesis import Kind, Nemesis
from tests.sim.plays.table import INPUT, MADE
from tests.sim.world import LOG, Process, World
from tests.support.samples.folds import put_all

__all__ = ["Guarantee", "tell"]

Guarantee = Literal["exactly-once", "at-least-once"]

END = 14
TARGET = "results"
PARTITIONS = 2
_HOLDER = "table"


def tell(scratch: Path, faults: Mapping[int, Kind], *, outputs: Guarantee, is_carried: bool) -> World:
    """Play the story with these faults, by number of the operation.

    `is_carried`: one commit at a time, whose record carries its messages; else several are pending.
    """
    world, judge = World(scratch, Nemesis(faults)), InputJudge(INPUT.fold)
    seen = _Seen(world, is_repeating=outputs == "at-least-once")
    with world.cluster.lock:
        world.cluster.create(TopicSpec(name=TARGET, partitions=PARTITIONS, replication_factor=1))
    with world.listening():

        def live(goal: int) -> Callable[[Process], None]:
            return _Life(judge, seen, goal, outputs, is_carried).live

        scenes: list[tuple[str, Callable[[Process], object]]] = [
            ("one", live(4)),
            ("round", Process.roll_up),
            ("two", live(7)),
            ("round", Process.roll_up),
            ("one", live(8)),
            ("two", live(11)),
            ("round", Process.roll_up),
            ("round", Process.roll_up),
            ("one", live(END)),
            ("two", live(END)),
            ("end", lambda process: judge.check_end(process.log, END)),
        ]
        for name, scene in scenes:
            world.play(name, scene)
            world.bury(name)
            world.rest()
            seen.check(judge.acknowledged)
    seen.check_end()
    return world


@dataclass(slots=True)
class _Seen:
    """A committed reader of the target."""

    world: World
    is_repeating: bool

    def numbers(self, partition: int) -> list[int]:
        """Return the numbers of the input's messages whose outputs a partition has, without repeats if they may be."""
        found: list[Output] = self.world.cluster.outputs(TARGET, partition)
        if self.is_repeating:
            newest, places = list[Output](), (-1, -1)
            for one in found:
                _, position, number = (dict(one.headers)["statelog"] or b"").decode().rsplit("/", 2)
                if (int(position), int(number)) > places:
                    places = int(position), int(number)
                    newest.append(one)
            found = newest
        return [int(one.value or b"") for one in found]

    def check(self, acknowledged: int) -> None:
        """Check that what was seen is a beginning of what has to be seen."""
        for partition in range(PARTITIONS):
            numbers = self.numbers(partition)
            assert numbers == list(range(partition, END, PARTITIONS))[: len(numbers)], numbers
            assert all(number < END for number in numbers)
        assert acknowledged <= END

    def check_end(self) -> None:
        """Check that all of it was seen."""
        for partition in range(PARTITIONS):
            assert self.numbers(partition) == list(range(partition, END, PARTITIONS))


def _wait_not(_: threading.Event, __: float) -> None:
    """Let no time pass."""


@dataclass(slots=True)
class _Life:
    """An incarnation that processes the input up to `goal`, and undoes some of what it sends."""

    judge: InputJudge
    seen: _Seen
    goal: int
    outputs: Guarantee
    is_carried: bool

    def live(self, process: Process) -> None:
        """Live once. Raises the table's error."""
        settings = TableSettings(
            outputs=self.outputs,
            outputs_patience_s=5.0,
            recovery=RecoverySettings(holder=_HOLDER, threads=1, lease_ttl_s=0.2),
            _tuning=TableTuning(commits_under_way_max=1 if self.is_carried else 2),
        )
        options = process.table_options(None, settings)
        environment = replace(process.table_environment(process.world.nemesis.point), wait=_wait_not)
        with environment.run(lambda: statelog.table(LOG, create=MADE, **options)) as table:
            offset = self.judge.check(table)
            self._process(table, offset)
        self.seen.check(self.judge.acknowledged)

    def _process(self, table: Table[bytes, bytes], offset: int) -> None:
        while offset < self.goal:
            with suppress(KeyError), table.transaction():
                table.send(TARGET, b"-1", partition=0)
                del table[b"never there"]
            with table.transaction():
                put_all(table, [INPUT.change(offset)])
                table.send(TARGET, b"%d" % offset, partition=offset % PARTITIONS)
            offset += 1
            if self.is_carried:
                table.commit({"offset": offset})
                self.judge.hear(offset)
            else:
                table.commit_async({"offset": offset})
            table.send(TARGET, b"-2", partition=1)
            table.rollback()
        if offset and not self.is_carried:
            table.commit({"offset": offset})
            self.judge.hear(offset)
