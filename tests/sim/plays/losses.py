"""Worlds whose brokers lost acknowledged records, in each way and grown again in each way, and every way in.

A world has two logs: `log`, which writers write, and `table`, whose owner has a directory. Both get three commits, the
moment to which the brokers go back, and three commits more. `Memory` is all that was remembered by then, and a follower
and a standby stay open through all of it. A way in is a `Door`: it ends in an error of Damaged, or returns what it
found, which is right or silent.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import statelog
from statelog.errors import Damaged, Fenced
from statelog.history import history
from statelog.lake import export
from statelog.log import Log
from statelog.log.producers import append_all
from statelog.materializer import run_round
from statelog.producer import Coordinator, Grant, Writer
from statelog.recovery import AtPosition, Cursor, RecoverySettings, Stream, newest_changes, plan_changes, recover
from statelog.recovery.settings import RecoveryTuning
from statelog.schemas import Place
from statelog.schemas.ledger.place import ORIGIN
from statelog.spark.options import StreamOptions, stream_options
from statelog.spark.stream_offset import StreamOffset
from statelog.spark.stream_planner import StreamPlanner
from statelog.tables import Standby, Table, TableSettings
from tests.support.rigs.log import LogRig, impatient, keys_in, settings_for
from tests.support.samples.folds import apply_to_dict

__all__ = ["CASES", "DOORS", "Case", "Door", "Loss", "Regrowth", "Snapshot", "Verdict", "World", "state_at", "verdict"]

_EACH = 3
_LAST = 2 * _EACH
_MORE = 12
"""The number of records that make a ledger grow beyond its old end."""
_PARTITIONS, _KEY_GROUPS = 2, 8
_SOON_S = 10.0
_PATIENT = RecoverySettings(_tuning=RecoveryTuning(stall_timeout_s=900.0))


class Loss(StrEnum):
    """The records that the brokers lost."""

    BACKUP = "ledger and data put back"
    TAIL = "ledger tail cut"
    POWER = "power loss of one copy"


class Regrowth(StrEnum):
    """The events before any client reads again."""

    QUIET = "quiet"
    SAME = "the same writer"
    OTHER = "another partition's writer"
    JUNK = "junk"
    BARRIER = "a barrier"


class Snapshot(StrEnum):
    """The newest snapshot, relative to the moment that the brokers went back to."""

    OLDER = "older"
    NEWER = "newer"
    NONE = "none"


class Verdict(StrEnum):
    """The outcome of a way in."""

    LOUD = "loud"
    RIGHT = "right"
    SILENT = "silent"


class Case(NamedTuple):
    """One world."""

    loss: Loss
    regrowth: Regrowth
    snapshot: Snapshot

    @property
    def name(self) -> str:
        """The name for topics and tests."""
        return "-".join(word.name.lower() for word in self)

    @property
    def hides_from_strangers(self) -> bool:
        """Whether Kafka and the store show no trace of the lost commits: docs/protocol-losses.md."""
        return self.loss is Loss.BACKUP and self.snapshot is not Snapshot.NEWER


CASES = [Case(*one) for one in product(Loss, Regrowth, Snapshot)]


@dataclass(slots=True)
class Memory:
    """The remembered facts of when all six commits existed."""

    cursor: str = ""
    offsets: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    place: Place = ORIGIN
    early: int = 0
    grant: Grant | None = None


@dataclass(slots=True)
class World:
    """Two logs of one case: one of writers, one of a table. `scratch` is a directory of the world's own."""

    case: Case
    log: LogRig
    table: LogRig
    scratch: Path
    memory: Memory = field(default_factory=Memory)
    living: ExitStack = field(default_factory=ExitStack)
    follower: Stream | None = None
    standing: Standby[Any, Any] | None = None

    # ---- before

    def write_first(self) -> None:
        """Write up to the moment that the brokers go back to."""
        for rig in (self.log, self.table):
            rig.create(partitions=_PARTITIONS, key_groups=_KEY_GROUPS).close()
        self._write(1)
        if self.case.snapshot is Snapshot.OLDER:
            self._roll_up()

    def write_on(self) -> None:
        """Write the commits that will be lost, and the clients' memory of them."""
        with self.open() as log:
            self.memory.early = log.commits()["a"].offset + 1
        self._write(1 + _EACH)
        if self.case.snapshot is Snapshot.NEWER:
            self._roll_up()
        with self.open() as log:
            self.memory.cursor = recover(log).stream().apply(lambda _: None).to_json()
            self.memory.place = log.place
            export(log, str(self.lake))
            for reader in ("", "reader"):
                self.memory.offsets[reader] = _read_on(log, _stream(reader))
        self._live()

    def _live(self) -> None:
        """Keep a follower and a standby that have read all six commits, and that go on when the brokers are back.

        They wait for however long that takes.
        """
        log = self.living.enter_context(self.open())
        self.follower = self.living.enter_context(recover(log, settings=_PATIENT)).follow()
        while self.follower.take(0.2) is not None:
            pass
        self.standing = self.living.enter_context(self.stand_by())

    def _write(self, first: int) -> None:
        numbers = range(first, first + _EACH)
        with self.open() as log, Writer(log, "a", partitions=[0]) as writer:
            for number in numbers:
                writer.put(_key(0, number), b"%d" % number)
                writer.commit(checkpoint_id=number)
            self.memory.grant = writer.grant
        with self.own(self.directory) as table:
            for number in numbers:
                table[_key(0, number)] = b"%d" % number
                table.commit({"offset": number})

    def _roll_up(self) -> None:
        for rig in (self.log, self.table):
            with rig.open() as log:
                run_round(log, settings_for(self.scratch))

    # ---- after

    def regrow(self) -> None:
        """Append the first records once the brokers are back. A refused client writes nothing."""
        match self.case.regrowth:
            case Regrowth.QUIET:
                pass
            case Regrowth.SAME:
                self._go_on("a", 0)
                with suppress(Damaged), self.own(None) as table:
                    for number in range(_MORE):
                        table[_key(0, number)] = b"other"
                        table.commit({"offset": number})
            case Regrowth.OTHER:
                self._go_on("b", 1)
            case Regrowth.JUNK:
                self._scatter()
            case Regrowth.BARRIER:
                for rig in (self.log, self.table):
                    with impatient(rig) as log, suppress(Damaged):
                        for _ in range(_MORE):
                            log.barrier()

    def _go_on(self, name: str, partition: int) -> None:
        for rig in (self.log, self.table):
            with impatient(rig) as log, suppress(Damaged), Writer(log, name, partitions=[partition]) as writer:
                for number in range(_MORE):
                    writer.put(_key(partition, number), b"other")
                    writer.commit()

    def _scatter(self) -> None:
        """Append a stranger's records at the end of every partition."""
        for rig in (self.log, self.table):
            with rig.open() as log, closing(log.kafka.producer()) as producer:
                append_all(producer, log.ledger_topic, 0, b"junk", _MORE)
                for partition in range(_PARTITIONS):
                    append_all(producer, log.data_topic, partition, b"junk", 3)

    # ---- for the doors

    @property
    def lake(self) -> Path:
        """The Delta table that is synchronized with the log."""
        return self.scratch / "lake"

    @property
    def directory(self) -> Path:
        """The directory of the table's state."""
        return self.scratch / "directory"

    def open(self) -> Log:
        """Return the log of the writers, as a new process opens it."""
        return impatient(self.log)

    def stand_by(self) -> Standby[Any, Any]:
        """Return a standby of the table, in memory."""
        settings = TableSettings(recovery=_PATIENT)
        return statelog.standby(self.table.name, self.table.where(), partitions=[0], settings=settings)

    def own(self, directory: Path | None) -> Table[Any, Any]:
        """Return the table, by its owner: on its directory, or again in memory."""
        return statelog.table(
            self.table.name,
            self.table.where(),
            backend="rocksdb" if directory else "dict",
            directory=directory,
            partitions=[0],
        )


def _key(partition: int, number: int) -> bytes:
    """Return the key of this number in a partition."""
    return next(islice(keys_in(partition, _PARTITIONS, _KEY_GROUPS), number, None))


def state_at(commits: int) -> dict[bytes, bytes]:
    """Return the state after so many commits, in either log."""
    return {_key(0, number): b"%d" % number for number in range(1, commits + 1)}


def _stream(reader: str) -> StreamOptions:
    where = {"log": "l", "root": "r", "kafka.bootstrap.servers": "b", "startingPosition": "earliest"}
    return stream_options(where | ({"readerId": reader} if reader else {}))


def _read_on(log: Log, options: StreamOptions) -> dict[str, Any]:
    """Return the checkpoint of a query once it has read all."""
    with closing(StreamPlanner(log, options)) as planner:
        begin = planner.begin()
        end = planner.end_of(begin)
        planner.plan(begin, end, 0)
        planner.end_of(end)
        return end.to_json()


# ---- the ways in: each returns what it found of the six commits


def _opened(ask: Callable[[Log, World], object]) -> Callable[[World], object]:
    """Return a way in by the log of the writers, opened again."""

    def enter(world: World) -> object:
        with world.open() as log:
            return ask(log, world)

    return enter


def _recover_early(log: Log, world: World) -> object:
    """Return a state from before the loss, which is right if it equals history's."""
    found = recover(log, at=AtPosition(world.memory.early)).to_dict()
    return state_at(_LAST) if found == state_at(_EACH) else found


def _resume(log: Log, world: World) -> object:
    return recover(log, resume=Cursor.from_json(world.memory.cursor)).stream().apply(lambda _: None)


def _owned(log: Log, owner: type[Writer | Coordinator]) -> object:
    """Return the checkpoint that a new incarnation finds."""
    with owner(log, "a", partitions=[0]) as opened:
        return opened.last_commit.checkpoint.id if opened.last_commit else 0


def _round(log: Log, world: World) -> object:
    run_round(log, settings_for(world.scratch))
    newest = log.manifests.newest()
    return newest.state.commits["a"].checkpoint.id if newest else 0


def _follow(world: World) -> object:
    with world.open() as log, recover(log, resume=Cursor.from_json(world.memory.cursor)).follow() as stream:
        while stream.take(0.5) is not None:
            pass
        return stream.cursor


def _standby(world: World) -> object:
    with world.stand_by() as standby:
        return dict(standby.items())


def _living_follower(world: World) -> object:
    """Return the living follower's answer; it queries once in a while."""
    assert world.follower is not None
    while world.follower.take(_SOON_S) is not None:
        pass
    return None


def _living_standby(world: World) -> object:
    """Return the living standby's answer, once its last comparison is too old to rest on."""
    assert world.standing is not None
    time.sleep(history.COMPARE_S)
    world.standing.refresh()
    return dict(world.standing.items())


def _table(world: World) -> object:
    with world.own(None) as table:
        return dict(table.items())


def _table_on_its_directory(world: World) -> object:
    with world.own(shutil.copytree(world.directory, world.scratch / "copy")) as table:
        return dict(table.items())


def _grant_of_before(world: World) -> object:
    """Return the last commit for a restarted job, which opens nothing under its grant.

    The job is refused if its Open is lost, or another's.
    """
    with suppress(Fenced), world.open() as log, Coordinator(log, "a", grant=world.memory.grant) as coordinator:
        return coordinator.last_commit
    raise Damaged("the grant is over")


def _changes(world: World) -> object:
    with world.open() as log:
        state = dict[bytes, bytes]()
        for table in newest_changes(log, plan_changes(log)):
            apply_to_dict(table, state)
        return state


def _new_query(world: World) -> object:
    with world.open() as log, closing(StreamPlanner(log, _stream(""))) as planner:
        begin = planner.begin()
        plan = planner.plan(begin, planner.end_of(begin), 0)
        return max((commit.checkpoint_id for commit in plan.commits), default=0)


def _query_of_before(reader: str) -> Callable[[World], object]:
    def go_on(world: World) -> object:
        with world.open() as log, closing(StreamPlanner(log, _stream(reader))) as planner:
            start = StreamOffset.from_json(world.memory.offsets[reader], log.descriptor.identity)
            return planner.plan(start, planner.end_of(start), 0)

    return go_on


class Door(NamedTuple):
    """A way in. One that `remembers` the lost records is never right: it has to raise."""

    enter: Callable[[World], object]
    remembers: bool = False


DOORS: dict[str, Door] = {
    "recover": Door(_opened(lambda log, _: recover(log).to_dict())),
    "recover an early state": Door(_opened(_recover_early)),
    "changes in batch": Door(_changes),
    "a new query": Door(_new_query),
    "commits": Door(_opened(lambda log, _: log.commits()["a"].checkpoint.id)),
    "describe": Door(_opened(lambda log, _: log.describe().state.commits["a"].checkpoint.id)),
    "standby": Door(_standby),
    "recover at least": Door(
        _opened(lambda log, world: recover(log, at_least=world.memory.place).to_dict()), remembers=True
    ),
    "resume": Door(_opened(_resume), remembers=True),
    "follow": Door(_follow, remembers=True),
    "a query of before": Door(_query_of_before(""), remembers=True),
    "a query of before with a readerId": Door(_query_of_before("reader"), remembers=True),
    "a follower that lived on": Door(_living_follower, remembers=True),
    "a standby that lived on": Door(_living_standby, remembers=True),
    "a grant of before": Door(_grant_of_before, remembers=True),
    "export": Door(_opened(lambda log, world: export(log, str(world.lake))), remembers=True),
    "table on its directory": Door(_table_on_its_directory, remembers=True),
    "barrier": Door(_opened(lambda log, _: recover(log, barrier=True).to_dict())),
    "round": Door(_opened(_round)),
    "table": Door(_table),
    "coordinator": Door(_opened(lambda log, _: _owned(log, Coordinator))),
    "writer": Door(_opened(lambda log, _: _owned(log, Writer))),
}
"""The ways in, in an order in which none hides a later one's evidence: writers come last."""


def verdict(world: World, door: Door) -> Verdict:
    """Return the outcome of a way in to this world."""
    try:
        found = door.enter(world)
    except Damaged:
        return Verdict.LOUD
    right = found == (_LAST if isinstance(found, int) else state_at(_LAST))
    return Verdict.RIGHT if right and not door.remembers else Verdict.SILENT
