"""Recovery of the materializer's snapshots: the two rooms agree on runs, manifests, leases and truncation."""

from pathlib import Path

import pytest

from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.recovery.progress import Progress
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.snapshot.retention import RetentionPolicy
from tests.support.rigs.history import history_rig


@pytest.mark.parametrize("rounds", [1, 6])
def test_state_after_rounds(rounds: int, tmp_path: Path) -> None:
    """After rounds with merges, truncation and cleanup the state is exact, and reads one snapshot and its tail."""
    rig = history_rig()
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0), fanout=2)
    for number in range(1, rounds + 1):
        with Writer(rig.log, "w") as writer:
            changes = [(b"key-%d" % i, None if i % 5 == number % 5 else b"%d" % number) for i in range(number, 80)]
            rig.commit(writer, number, changes)
        assert isinstance(run_round(rig.log, policy), CompletedRound)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, rounds + 1, [(b"key-%d" % i, b"tail") for i in range(0, 80, 3)])
    recovery = recover(rig.log)
    assert recovery.to_dict() == rig.state_at(rig.end())
    assert recovery.plan.manifest_number == rounds
    assert recovery.statistics().tail_changes == len(range(0, 80, 3))


def test_a_round_leaves_what_a_recovery_holds(tmp_path: Path) -> None:
    """Rounds retain the snapshot and the tail of a recovery's lease, and remove them once it is done."""
    rig = history_rig()
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1")])
        run_round(rig.log, policy)
        held = rig.commit(writer, 2, [(b"a", b"2"), (b"b", b"2")])
        seen: list[int] = []

        def run_rounds(_: Progress) -> None:
            """Commit five times while the first run is read, with a round after each."""
            if seen:
                return
            for number in range(3, 8):
                rig.commit(writer, number, [(b"a", b"%d" % number)])
                assert isinstance(run_round(rig.log, policy), CompletedRound)
            seen.extend(rig.log.manifests.numbers())

        recovery = recover(
            rig.log, on_progress=run_rounds, settings=RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0.0))
        )
        assert recovery.to_dict() == rig.state_at(held)
        assert 1 in seen
        assert (recovery.position, recovery.statistics().plans) == (held, 1)
        rig.commit(writer, 8, [(b"a", b"8")])
        run_round(rig.log, policy)
    assert 1 not in rig.log.manifests.numbers()
