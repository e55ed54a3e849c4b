"""Recovery concurrent with truncation, cleanup and time: it plans again, holds its lease, or names the missing part."""

import math
import warnings
from collections.abc import Callable

import pytest

from statelog.environment import Environment
from statelog.errors import NotFound
from statelog.reading.claims import list_leases
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.snapshot.claims import expired
from tests.support.rigs.history import SnapshotTwins
from tests.support.waiting import wait_for


def _advance(twins: SnapshotTwins) -> None:
    """Put another snapshot, and delete the older ones with all that only they needed."""
    twins.rig.snapshot(merge=True)
    for manifest in twins.rig.manifests[:-1]:
        twins.rig.drop(manifest)
    twins.rig.truncate(twins.rig.manifests[-1])


def _advancing(twins: SnapshotTwins, meets: Callable[[str, str], bool]) -> list[str]:
    """Advance once, at the store's first call (method, path) that `meets` takes; return a list that gets its path."""
    moved: list[str] = []

    def hook(method: str, path: str) -> None:
        if meets(method, path) and not moved:
            moved.append(path)
            _advance(twins)

    twins.hooked(hook)
    return moved


def test_truncation_between_plan_and_lease_plans_again() -> None:
    """A truncation between plan and lease costs one more plan, and nothing else."""
    twins = SnapshotTwins(truncate=True)
    moved = _advancing(twins, lambda method, path: method == "put" and path.startswith("leases/"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recovery = recover(twins.log)
        assert recovery.to_dict() == twins.expected
    assert moved
    assert recovery.statistics().plans == 2
    assert list_leases(twins.log.store) == []


def test_cleanup_while_runs_are_read_plans_again() -> None:
    """A run that is deleted together with its manifest is no damage: its replacing snapshot is read."""
    twins = SnapshotTwins(truncate=True)
    moved = _advancing(twins, lambda method, path: method == "open" and path == twins.run_of(-1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recovery = recover(twins.log)
        assert recovery.to_dict() == twins.expected
    assert moved
    assert recovery.statistics().plans == 2


def test_an_old_state_that_goes_away_meanwhile_is_not_found() -> None:
    """A position that truncation took before the lease existed is NotFound with the held range, never another state."""
    twins = SnapshotTwins(truncate=True)
    position = twins.rig.manifests[0].position
    _advancing(twins, lambda method, path: method == "put" and path.startswith("leases/"))
    with pytest.raises(NotFound) as caught:
        recover(twins.log, at=AtPosition(position)).to_dict()
    assert caught.value.facts["oldest_position"] == twins.rig.manifests[-1].position


def test_a_lease_is_held_while_reading_and_gone_afterwards() -> None:
    """Every run is opened under exactly one lease, which names the snapshot that is read; a plan has none."""
    twins = SnapshotTwins(truncate=True)
    store = twins.log.store
    seen: list[tuple[str, list[tuple[int, int]]]] = []

    def look(method: str, path: str) -> None:
        if method == "open" and path.startswith("runs/"):
            leases = [one.lease for one in list_leases(store)]
            seen.append((path, [(lease.manifest_number, lease.position) for lease in leases]))

    twins.hooked(look)
    recovery = recover(twins.log)
    assert list_leases(twins.log.store) == []
    recovery.to_dict()
    manifest = twins.rig.manifests[-1]
    assert {path for path, _ in seen} == {run.path for run in manifest.runs}
    assert all(leases == [(manifest.number, manifest.position)] for _, leases in seen)
    assert list_leases(twins.log.store) == []


def test_a_lease_outlives_its_time_while_reading_goes_on() -> None:
    """A lease of 60 seconds stays alive over runs that take 50 seconds to open, because progress renews it."""
    twins = SnapshotTwins(truncate=True)
    store = twins.log.store
    opened: list[str] = []

    def live_leases() -> int:
        held = list_leases(store)
        return sum(not expired(h.lease, h.modified_s, twins.now_s, math.inf) for h in held)

    def open_slowly(method: str, path: str) -> None:
        if method == "open" and path.startswith("runs/"):
            twins.now_s += 50.0
            wait_for(lambda: live_leases() == 1)
            opened.append(path)

    twins.hooked(open_slowly)
    Environment(clock=lambda: twins.now_s).run(
        recover, twins.log, settings=RecoverySettings(lease_ttl_s=60.0)
    ).to_dict()
    assert len(set(opened)) == 3


def test_a_failing_callback_ends_the_recovery() -> None:
    """An error of the caller's progress function is raised unchanged, and the lease is removed."""

    def fail(_: object) -> None:
        raise RuntimeError("the caller's own")

    twins = SnapshotTwins(truncate=True)
    recovery = recover(twins.log, on_progress=fail)
    with pytest.raises(RuntimeError, match="the caller's own"):
        recovery.to_dict()
    assert list_leases(twins.log.store) == []
