"""A log on one cluster of twins, its copy on another, and the model of the state that both must have."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Lock, RLock
from typing import Any, cast

import pytest

from statelog.errors import OffsetGone
from statelog.log import Log, Where
from statelog.materializer import tail_now
from statelog.materializer.copy import Copied, copy_log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import State, TwinRig, settings_for, state_of, twin_rig
from tests.support.samples.folds import apply_all, put_all

__all__ = ["DOORS", "Move", "begun"]

_LOCK, _RLOCK = type(Lock()), type(RLock())


@dataclass(slots=True)
class Move:
    """A log on one cluster, the copy of it on another, and the state that the log has."""

    scratch: Path
    old: TwinRig = field(default_factory=lambda: twin_rig("old"))
    new: TwinRig = field(default_factory=lambda: twin_rig("new", cluster=MemoryCluster(cluster_id="another")))
    model: State = field(default_factory=dict[Any, Any])
    number: int = 0

    def write(self, log: Log, writer: str = "w") -> None:
        """Commit as the writer, with its number as metadata: puts, deletes, and a meta record."""
        self.number += 1
        with Writer(log, writer, expect=self._last(log, writer)) as out:
            values = [None if (i + self.number) % 5 == 0 else b"%d.%d" % (self.number, i) for i in range(12)]
            changes = [(b"%s%d" % (writer.encode(), i), value) for i, value in enumerate(values)]
            put_all(out, changes)
            apply_all(self.model, changes)
            out.commit({"source": self.number}, checkpoint_id=self.number)

    def _last(self, log: Log, writer: str) -> int:
        found = log.commits().get(writer)
        return found.checkpoint.id if found else 0

    def round(self, log: Log) -> CompletedRound:
        """Run a round that has work to do."""
        outcome = run_round(log, settings_for(self.scratch, fanout=3))
        assert isinstance(outcome, CompletedRound)
        return outcome

    def copy(self, where: Where | None = None, source: Where | None = None, **options: Any) -> Copied:
        """Copy the new part of the log."""
        with Log.open("old", source or self.old.where()) as log:
            where, settings = where or self.new.where(), settings_for(self.scratch, fanout=3)
            return copy_log(log, "new", where, settings=settings, **options)

    def check_closed(self) -> None:
        """Check that nobody can read or write the copy, and that its contents do not move."""
        with self.new.open() as log:
            end = log.ledger.end()
            for door in DOORS:
                with pytest.raises(OffsetGone, match=r"copy|snapshot"):
                    door(log, self.scratch)
            assert log.ledger.end() == end

    def check_goes_on(self) -> None:
        """Check that the copy has the state and everybody's progress, and is a log like any other."""
        with self.new.open() as log:
            assert recover(log).to_dict() == self.model == state_of(log)
            for writer in ("w", "v", "w"):
                self.write(log, writer)
                assert recover(log).to_dict() == self.model == state_of(log)
                assert self.round(log).cleanup.held_back == ""
            assert log.kafka.offsets(log.ledger_topic, [0])[0].start > 0
            kept = [log.manifests.read(number) for number in log.manifests.numbers()]
            files = {info.path for info in log.store.list("runs/")}
            assert files == {run.path for manifest in kept for run in manifest.runs}


@cache
def _beginning() -> Move:
    with TemporaryDirectory() as scratch:
        made = Move(Path(scratch))
        with made.old.create() as log:
            for writer in ("w", "v"):
                made.write(log, writer)
                made.round(log)
            made.write(log, "w")
    return made


def begun(scratch: Path) -> Move:
    """Return a log of two writers with two snapshots and a tail, of which nothing was copied yet.

    It is made once; each test gets a copy of its own.
    """
    made = _beginning()
    twins = made.old.cluster, made.old.disk
    held = [value for twin in twins for value in vars(twin).values()]
    locks: dict[int, object] = {id(lock): Lock() for lock in held if isinstance(lock, _LOCK)}
    locks |= {id(lock): RLock() for lock in held if isinstance(lock, _RLOCK)}
    own = cast("Any", locks[id(made.old.cluster.lock)])
    locks |= {id(one): Condition(own) for one in held if isinstance(one, Condition)}
    cluster, disk = deepcopy(twins, locks)  # The locks are new: nothing else can copy them.
    return Move(scratch, twin_rig("old", cluster=cluster, disk=disk), model=dict(made.model), number=made.number)


DOORS: tuple[Callable[[Log, Path], object], ...] = (
    lambda log, _: recover(log).to_dict(),
    lambda log, _: Writer(log, "w"),
    lambda log, _: log.describe(),
    lambda log, _: log.commits(),
    lambda log, _: log.barrier(),
    lambda log, scratch: run_round(log, settings_for(scratch)),
    lambda log, _: tail_now(log),
)
"""Ways to read or write an open log, each of which a log with a changed identity must refuse."""
