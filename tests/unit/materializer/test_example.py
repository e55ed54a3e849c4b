"""The worked example, step by step on the twins: a changelog with overlapping checkpoints and materializations."""

from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import StoreUnavailable
from statelog.materializer import CompletedRound, Materializer, SkippedRound, run_round, tail_now
from tests.support.rigs.log import TwinLog, settings_for, state_of, state_of_snapshot


def test_settings_are_a_choice() -> None:
    """Settings are optional: a log is enough for one round, and for a daemon."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    log = twin.open()
    assert isinstance(run_round(log), CompletedRound)
    assert isinstance(Materializer(log).run_once(), SkippedRound)


@pytest.mark.usefixtures("busy_ledger")
def test_a_round_that_overlaps_checkpoints_takes_each_change_once(tmp_path: Path) -> None:
    """Changes committed while a round runs are not in its snapshot, but not lost.

    Truncation waits for a second snapshot.

    a, checkpoint 1; b, checkpoint 2; a round takes its target; c, checkpoint 3; the round ends; d, checkpoint 4.
    """
    twin = TwinLog(partitions=1)
    settings = settings_for(tmp_path)
    log = twin.open()
    twin.write({b"a": b"1"})
    twin.write({b"b": b"1"})
    at_target = dict(twin.model)

    def meanwhile(point: str) -> None:
        if point == "after-fold":
            twin.write({b"c": b"1"})

    first = replace(twin.environment, crash=meanwhile).run(run_round, log, settings)
    assert isinstance(first, CompletedRound)
    assert (first.commits, first.changes) == (2, 2)
    newest = log.manifests.newest()
    assert newest is not None
    assert state_of_snapshot(log, newest) == at_target
    twin.write({b"d": b"1"})

    # The replay continues right behind the target: c and d are in it, b is not.
    assert twin.environment.run(tail_now, log).changes == 2
    assert state_of(log) == twin.model
    assert log.data_offsets()[0].start == 0

    second = twin.environment.run(run_round, log, settings)
    assert isinstance(second, CompletedRound)
    assert (second.commits, second.changes) == (2, 2)
    assert log.data_offsets()[0].start == newest.next_offsets[0]
    assert state_of(log) == twin.model
    assert state_of(log, min) == twin.model


def test_recovery_has_the_log_alone_until_the_first_round_and_snapshots_across_failures_after(tmp_path: Path) -> None:
    """Recovery gives the same state from the log alone, from snapshots, and across failed rounds."""
    twin = TwinLog()
    for turn in range(6):
        twin.write({f"k{i}".encode(): f"{turn}".encode() if (i + turn) % 4 else None for i in range(20)})
        assert state_of(twin.open()) == twin.model
        if turn % 2:
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path, fanout=2))
        else:
            with pytest.raises(StoreUnavailable):
                replace(twin.environment, crash=_fail_after_upload).run(
                    run_round,
                    twin.open(),
                    settings_for(tmp_path, fanout=2),
                )
        assert state_of(twin.open()) == twin.model
    assert twin.open().manifests.numbers() == [2, 3]


def _fail_after_upload(point: str) -> None:
    if point == "after-upload":
        raise StoreUnavailable("the store went away")
