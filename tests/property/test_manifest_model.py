"""Snapshots, retention and truncation under random schedules: stalls, crashes, several materializers, late puts."""

import random
from collections.abc import Iterable, Mapping
from functools import cache

import pytest

from statelog.schemas.snapshot import retention
from statelog.schemas.snapshot.manifest import Manifest
from tests.sim.models import manifest as manifest_world
from tests.sim.models.manifest import ManifestWorld, ViolationError, simulate

SEEDS = 200
MUTANT_SEEDS = 2000
SOAK_SEEDS = 20_000


def _first_violation(off: str, seeds: range) -> str | None:
    for seed in seeds:
        try:
            simulate(seed, off)
        except ViolationError as error:
            return f"seed {seed}: {error}"
    return None


@cache
def _histories(off: str) -> list[ManifestWorld]:
    return [simulate(seed, off) for seed in range(SEEDS)]


def test_snapshots_stay_recoverable_under_any_schedule() -> None:
    """After every step the two newest snapshots can be recovered, and no reader sees a wrong state."""
    histories = _histories("")
    assert sum(world.rounds for world in histories) > 10 * SEEDS
    assert sum(world.lost for world in histories) > SEEDS
    assert sum(world.reads for world in histories) > 10 * SEEDS


@pytest.mark.parametrize("guard", ["list", "floor", "delete", "before"])
def test_every_guard_prevents_a_violation(guard: str) -> None:
    """Some schedule loses a snapshot without one of the guards of a round.

    list: look again after the put. floor: truncate by the oldest kept manifest. delete: a loser deletes nothing.
    before: condemn only files of a listing taken before the put.
    """
    assert _first_violation(guard, range(MUTANT_SEEDS)) is not None


def _keep_one(superseded_s: Mapping[int, float | None], *_: object) -> frozenset[int]:
    return frozenset([max(superseded_s)])


def _condemn_kept(listing: Iterable[str], own: Manifest, _kept: object, _leases: object = ()) -> tuple[str, ...]:
    return retention.condemned(listing, own, [])


def _condemn_own(listing: Iterable[str], own: Manifest, kept: Iterable[Manifest], _: object = ()) -> tuple[str, ...]:
    others = list(kept)
    return retention.condemned(listing, others[0] if others else own, others)


def _floor_of_newest(kept: Iterable[Manifest], _leases: object) -> retention.Floor:
    return retention.truncation_floor([max(kept, key=lambda manifest: manifest.number)], [])


def _drop_kept(listed: Iterable[int], _kept: object, own: int) -> tuple[int, ...]:
    return tuple(number for number in listed if number < own)


@pytest.mark.parametrize(
    ("decision", "wrong"),
    [
        ("kept_numbers", _keep_one),
        ("condemned", _condemn_kept),
        ("condemned", _condemn_own),
        ("truncation_floor", _floor_of_newest),
        ("dropped_numbers", _drop_kept),
    ],
)
def test_every_wrong_decision_is_seen(monkeypatch: pytest.MonkeyPatch, decision: str, wrong: object) -> None:
    """A decision that keeps too little loses a snapshot in some schedule, so the checks can see it."""
    monkeypatch.setattr(manifest_world, decision, wrong)
    assert _first_violation("", range(MUTANT_SEEDS)) is not None


@pytest.mark.parametrize("guard", ["age", "lease"])
def test_age_and_leases_serve_readers_and_never_safety(guard: str) -> None:
    """Without them nothing is lost, but more readers have to plan again."""
    without = sum(world.replans for world in _histories(guard))
    assert without > sum(world.replans for world in _histories(""))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_snapshots_stay_recoverable_under_many_schedules() -> None:
    """The same over many more schedules, from seeds that differ in every run."""
    start = random.SystemRandom().randrange(1 << 40)
    assert _first_violation("", range(start, start + SOAK_SEEDS)) is None
