"""Rounds over rows with dues: what they write, cut, merge and copy has each row's due."""

import random
from pathlib import Path

from statelog.materializer.copy import copy_log
from statelog.materializer.round import run_round
from statelog.reading import AtPosition
from statelog.recovery import recover
from statelog.store.run_reader import read_back
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.timed import NOON_MS, TimedLog, timed_state


def test_only_the_runs_that_have_dues_have_the_column(tmp_path: Path) -> None:
    """A state that is cut into runs by key group has the column in those with a due, and all of them verify."""
    made = TimedLog()
    made.put({b"key-%03d" % i: (b"x" * 100, None) for i in range(200)})
    made.put({b"key-007": (b"y", NOON_MS)})
    with made.open() as log:
        made.environment.run(run_round, log, settings_for(tmp_path, max_run_bytes=2000))
        manifest = log.manifests.newest()
        assert manifest is not None
        for run in manifest.runs:
            read_back(log.store, run, log.descriptor)
        assert len(manifest.runs) > 3
        assert [run.due_rows for run in manifest.runs if run.due_rows] == [1]
        assert timed_state(recover(log).to_arrow(due=True)) == made.rows


def test_a_copy_has_the_dues(tmp_path: Path) -> None:
    """A copy of a log has its dues, from the first copy and from later ones, and the digests of both are equal."""
    rng, made = random.Random(3), TimedLog(name="old")
    new = twin_rig("new")
    for finish in (False, False, True):
        made.put(made.some(rng, due_share=0.5))
        made.round(tmp_path)
        made.put(made.some(rng, due_share=0.5))
        with made.open() as log:
            copy_log(log, "new", new.where(), settings=settings_for(tmp_path), finish=finish)
    with made.open() as old, new.open() as log:
        assert timed_state(recover(log).to_arrow(due=True)) == made.rows
        assert recover(log).digest() == recover(old).digest()


def test_an_older_state_has_its_own_dues(tmp_path: Path) -> None:
    """A state at a position has the dues of then, from whatever snapshot it is read."""
    made, states = TimedLog(), dict[int, object]()
    for number in range(6):
        made.put({b"a": (b"1", NOON_MS + number if number % 3 else None), b"b%d" % number: (b"1", NOON_MS)})
        with made.open() as log:
            states[log.ledger.end()] = dict(made.rows)
        if number % 2:
            made.round(tmp_path)
    with made.open() as log:
        for position, rows in states.items():
            assert timed_state(recover(log, at=AtPosition(position)).to_arrow(due=True)) == rows
