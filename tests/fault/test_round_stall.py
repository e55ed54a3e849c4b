"""A round that stalls while others go on, at the most harmful moments."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import NotFound, OffsetGone, StatelogError
from statelog.log import Log, Where
from statelog.materializer import cleanup
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound, RoundOutcome
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.work import RoundWork
from statelog.reading.hold import Hold, Needs, Terms
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.store.port import FileInfo
from tests.sim.actors import Stepper
from tests.support.rigs.log import TwinLog, rolled_up, settings_for, state_of


def _others(twin: TwinLog, scratch: Path, rounds: int) -> None:
    for turn in range(rounds):
        twin.write({b"other": str(turn).encode()})
        assert isinstance(twin.environment.run(run_round, twin.open(), settings_for(scratch, fanout=2)), CompletedRound)


def _stalled_at(point: str, meanwhile: Callable[[], None], twin: TwinLog, scratch: Path) -> RoundOutcome:
    def crash(name: str) -> None:
        if name == point:
            meanwhile()

    return replace(twin.environment, crash=crash).run(run_round, twin.open(), settings_for(scratch, fanout=2))


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """Return a log with one snapshot and a tail."""
    return rolled_up(tmp_path)


@pytest.mark.parametrize("point", ["after-newest", "after-fold", "after-delta", "after-merge", "after-upload"])
def test_a_round_that_was_overtaken_before_its_put_loses(point: str, twin: TwinLog, tmp_path: Path) -> None:
    """A round whose base was superseded and cleaned up loses: missing files are no data loss, and it removes none."""
    before = set[str]()

    def meanwhile() -> None:
        _others(twin, tmp_path, 4)
        before.update(twin.run_paths())

    outcome = _stalled_at(point, meanwhile, twin, tmp_path)
    assert isinstance(outcome, LostRound)
    assert before <= twin.run_paths()
    assert state_of(twin.open()) == twin.model


def _held(twin: TwinLog, number: int) -> Hold:
    """Return a reader's lease on a snapshot, and on the log behind it."""
    log = twin.open()
    manifest = log.manifests.read(number)
    needs = Needs(manifest.position, manifest.next_offsets, number)
    return Hold(log.store, Terms("reader", 1000.0), environment=Environment(clock=twin.clock)).claim(needs)


@pytest.mark.parametrize("point", ["after-newest", "after-fold", "after-delta", "after-merge", "after-upload"])
def test_a_round_that_misses_nothing_sees_before_its_put_that_it_was_overtaken(
    point: str, twin: TwinLog, tmp_path: Path
) -> None:
    """A round that misses no file detects before its put that it was overtaken.

    A lease holds all that it reads, but not its slot, nor its uploads. A manifest there would name deleted runs, and
    readers of the past would get a damage error.
    """
    with _held(twin, 1):
        outcome = _stalled_at(point, lambda: _others(twin, tmp_path, 4), twin, tmp_path)
        assert outcome == LostRound(number=5)
        assert twin.open().manifests.numbers() == [1, 4, 5]


def test_a_put_into_a_slot_that_was_cleaned_up_since_does_not_count(twin: TwinLog, tmp_path: Path) -> None:
    """A put into a cleaned-up slot is lost, as the second listing shows a higher number; newer rounds' files stay."""
    before = set[str]()

    def meanwhile() -> None:
        _others(twin, tmp_path, 4)
        before.update(twin.run_paths())

    outcome = _stalled_at("after-list", meanwhile, twin, tmp_path)
    assert outcome == LostRound(number=5)
    assert 2 in twin.open().manifests.numbers()
    assert twin.run_paths() == before
    assert state_of(twin.open()) == twin.model

    _others(twin, tmp_path, 1)
    assert twin.open().manifests.numbers() == [5, 6]


def test_a_winner_that_stalls_before_its_cleanup_removes_nothing_that_counts(twin: TwinLog, tmp_path: Path) -> None:
    """A winner whose manifest was deleted before its cleanup removes nothing, and says so."""
    outcome = _stalled_at("after-win", lambda: _others(twin, tmp_path, 4), twin, tmp_path)
    assert isinstance(outcome, CompletedRound)
    assert "newer round" in outcome.cleanup.held_back
    assert state_of(twin.open()) == twin.model
    assert state_of(twin.open(), min) == twin.model


def test_a_winner_removes_nothing_that_a_younger_round_uploaded_meanwhile(twin: TwinLog, tmp_path: Path) -> None:
    """A winner removes only files of its listing before the put: no manifest names the next round's later runs yet."""
    stepper, passed = Stepper(), list[str]()

    def younger() -> None:
        def crash(name: str) -> None:
            passed.append(name)
            stepper.pause()

        outcome = replace(twin.environment, crash=crash).run(run_round, twin.open(), settings_for(tmp_path))
        assert isinstance(outcome, CompletedRound)

    actor = stepper.actor(younger)

    def meanwhile() -> None:
        twin.write({b"k2": b"3"})
        while "after-upload" not in passed:
            actor.step()

    assert isinstance(_stalled_at("after-put", meanwhile, twin, tmp_path), CompletedRound)
    while not actor.over:
        actor.step()
    assert twin.open().manifests.numbers() == [2, 3]
    assert state_of(twin.open()) == twin.model


@pytest.mark.parametrize("point", ["after-check", "after-drop", "after-truncate-data", "after-truncate-ledger"])
def test_a_winner_that_stalls_inside_its_cleanup_harms_nobody(point: str, twin: TwinLog, tmp_path: Path) -> None:
    """A winner that stalls inside its cleanup harms nobody: its deletions stay right, however late."""
    outcome = _stalled_at(point, lambda: _others(twin, tmp_path, 4), twin, tmp_path)
    assert isinstance(outcome, CompletedRound)
    assert state_of(twin.open()) == twin.model
    assert state_of(twin.open(), min) == twin.model


def test_a_lease_holds_its_snapshot_and_the_log_until_it_ends(twin: TwinLog, tmp_path: Path) -> None:
    """Manifest, runs and offsets of a live lease stay; at the cap they are deleted, with the lease's file."""
    log = twin.open()
    with _held(twin, 1):
        _others(twin, tmp_path, 4)
        assert log.manifests.numbers() == [1, 4, 5]
        assert state_of(log, min) == twin.model
        twin.now_s += 2000.0
        _others(twin, tmp_path, 1)
    assert log.manifests.numbers() == [5, 6]
    assert not list(log.store.list("leases/"))


def test_a_young_manifest_is_kept_beyond_the_number(twin: TwinLog, tmp_path: Path) -> None:
    """Manifests superseded less than the minimum age ago stay, for readers that have just planned with them."""
    settings = settings_for(tmp_path, retention=RetentionPolicy(keep=2, min_age_s=60.0))
    for turn in range(4):
        twin.write({b"a": str(turn).encode()})
        twin.environment.run(run_round, twin.open(), settings)
        twin.now_s += 25.0
    assert twin.open().manifests.numbers() == [2, 3, 4, 5]


@pytest.mark.usefixtures("busy_ledger")
def test_a_log_start_above_the_newest_snapshot_is_a_loss_not_a_race(twin: TwinLog, tmp_path: Path) -> None:
    """A log start above the newest snapshot without another winner is OffsetGone, a loss, and nothing is written."""
    log = twin.open()
    ends = {p: there.end for p, there in log.data_offsets().items()}
    log.kafka.delete_records(log.data_topic, ends)
    with pytest.raises(OffsetGone):
        twin.environment.run(run_round, log, settings_for(tmp_path))
    assert log.manifests.numbers() == [1]


def _round_built_on_a_winner_that_cleans_up_late(twin: TwinLog, scratch: Path) -> RoundOutcome:
    """Return B's outcome: A wins and stalls; B starts from A's manifest and uploads; A cleans up; B puts."""
    at: list[str] = []
    stepper = Stepper()

    def pause(name: str) -> None:
        at.append(name)
        stepper.pause()

    first = stepper.actor(
        lambda: _discard(replace(twin.environment, crash=pause).run(run_round, twin.open(), settings_for(scratch)))
    )
    while at[-1:] != ["after-win"]:
        first.step()
    twin.write({b"k2": b"3"})

    def meanwhile() -> None:
        while not first.over:
            first.step()

    return _stalled_at("after-upload", meanwhile, twin, scratch)


def _discard(_outcome: RoundOutcome) -> None:
    """Return nothing, as an actor does."""


def test_a_late_cleanup_spares_what_was_uploaded_since(twin: TwinLog, tmp_path: Path) -> None:
    """A late cleanup spares files that came after the winner's listing: they belong to rounds built on it."""
    outcome = _round_built_on_a_winner_that_cleans_up_late(twin, tmp_path)
    assert isinstance(outcome, CompletedRound)
    assert state_of(twin.open()) == twin.model


def test_a_listing_after_the_put_would_delete_what_is_needed(
    twin: TwinLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a listing after the put a published run is deleted: its moment is the guard of the test above."""

    def with_a_new_list(
        work: RoundWork,
        own: Manifest,
        cleanup_plan: cleanup.CleanupPlan,
        chosen: MaterializerSettings,
        verified: VerifiedRuns,
        listed: Mapping[int, FileInfo],
    ) -> Cleanup:
        late = cleanup.plan_cleanup(work.log, list(work.log.store.list()), own, chosen, verified)
        return cleanup.run_cleanup(work, own, replace(cleanup_plan, condemned=late.condemned), chosen, verified, listed)

    monkeypatch.setattr("statelog.materializer.round.run_cleanup", with_a_new_list)
    _round_built_on_a_winner_that_cleans_up_late(twin, tmp_path)
    with pytest.raises(NotFound):
        state_of(twin.open())


def test_a_manifest_that_is_put_while_its_log_is_deleted_goes_with_it(twin: TwinLog, tmp_path: Path) -> None:
    """A manifest that is put while its log is deleted is deleted with it: else the name could not be used again."""
    stepper, passed = Stepper(), list[str]()

    def rolling_up() -> None:
        def crash(name: str) -> None:
            passed.append(name)
            stepper.pause()

        with pytest.raises(StatelogError):
            replace(twin.environment, crash=crash).run(run_round, twin.open(), settings_for(tmp_path))

    actor = stepper.actor(rolling_up)
    while "after-list" not in passed:
        actor.step()

    def put_meanwhile(method: str, _path: str) -> None:
        while method == "delete" and "after-put" not in passed:
            actor.step()

    with twin.open(put_meanwhile) as log:
        Log.delete("log", Where(log.kafka, log.store))
    assert twin.disk.files("log/") == []
    while not actor.over:
        actor.step()


def test_a_round_beside_the_late_cleanup_of_its_base(twin: TwinLog, tmp_path: Path) -> None:
    """A round completes though its base's late cleanup truncates records that its read was to compare."""

    def meanwhile() -> None:
        with twin.open() as log:
            base = log.manifests.newest()
            assert base is not None
            log.kafka.delete_records(log.data_topic, base.next_offsets)

    outcome = _stalled_at("after-fold", meanwhile, twin, tmp_path)
    assert isinstance(outcome, CompletedRound)
    assert state_of(twin.open()) == twin.model


@pytest.mark.usefixtures("busy_ledger")
def test_a_tail_that_is_gone_behind_a_base_is_a_loss(twin: TwinLog, tmp_path: Path) -> None:
    """A missing tail behind a base is a loss, by any cause and at any repeated check."""

    def meanwhile() -> None:
        with twin.open() as log:
            log.kafka.delete_records(log.data_topic, {p: at.end for p, at in log.data_offsets().items()})

    with pytest.raises(OffsetGone):
        _stalled_at("after-fold", meanwhile, twin, tmp_path)
