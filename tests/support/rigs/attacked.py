"""A log whose data topic a stranger writes to all the while, and clients that must go on, each in its own process."""

import time
from collections.abc import Callable
from pathlib import Path

from statelog.environment import Environment
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import plan_changes, read_changes, recover
from tests.support.rigs.history import Reader
from tests.support.rigs.log import LogRig, settings_for
from tests.support.rigs.table import TableRig
from tests.support.waiting import wait_for

__all__ = ["commit", "everybody_goes_on", "roll_up", "tables_go_on"]

Attack = Callable[[], None]
"""A write of a record behind all others in partition 0."""


def commit(log: Log, number: int) -> dict[bytes, bytes]:
    """Commit by a writer that opens for it; return the state after the commit."""
    with Writer(log, "w", expect=number - 1) as writer:
        writer.put(b"k%d" % number, b"v")
        writer.commit(checkpoint_id=number)
    return {b"k%d" % i: b"v" for i in range(1, number + 1)}


def roll_up(log: Log, scratch: Path) -> None:
    """Run a round."""
    assert isinstance(Environment(wall_clock=time.time).run(run_round, log, settings_for(scratch)), CompletedRound)


def everybody_goes_on(rig: LogRig, attack: Attack, scratch: Path) -> None:
    """Run openers, a follower, recoveries, changes and rounds; each attack is the last record until the next commit."""
    reader = Reader()
    with rig.create(partitions=1, key_groups=2) as log:
        attack()
        with recover(log).follow() as stream:
            for number in (1, 2):
                model = commit(log, number)
                attack()

            def is_level() -> bool:
                portion = stream.take(1.0)
                if portion is not None:
                    reader.apply(portion)
                return reader.state == model

            wait_for(is_level, "the follower has another state")
        assert recover(log).to_dict() == model
        keys = [key for changes in read_changes(log, plan_changes(log)) for key in changes.column("key").to_pylist()]
        assert sorted(keys) == sorted(model)
        roll_up(log, scratch)
        model = commit(log, 3)
        attack()
        roll_up(log, scratch)
        assert recover(log).to_dict() == model


def tables_go_on(rig: LogRig, attack: Attack) -> None:
    """Open a table again and again, with all that it committed."""
    made = TableRig(rig, None)
    for number in range(3):
        with made.open(partitions=1, key_groups=2) as table:
            assert len(table) == number
            table[b"k%d" % number] = b"v"
            table.commit()
        attack()
