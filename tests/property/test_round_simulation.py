"""Properties of real rounds under any interleaving, on the twins; `make soak` takes more seeds."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from statelog.errors import StatelogError
from statelog.materializer import cleanup
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.claims import Lease, Subscription, SubscriptionFile
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import Floor, condemned, truncation_floor
from tests.sim.plays.rounds import RoundWorld, ViolationError

SEEDS = range(6)
STEPS = 1200


def _simulate(seed: int, scratch: Path) -> RoundWorld:
    world = RoundWorld(seed, scratch)
    world.run(STEPS)
    world.settle()
    return world


def test_snapshots_are_always_recoverable(tmp_path: Path) -> None:
    """Whatever is stalled, killed or outrun, the newest two snapshots and the tail are the committed state."""
    worlds = [_simulate(seed, tmp_path) for seed in SEEDS]
    assert sum(world.completed for world in worlds) > 3 * len(SEEDS)
    assert sum(world.lost for world in worlds) > 0
    assert sum(world.killed for world in worlds) > 0
    assert sum(world.reads - world.replans for world in worlds) > 0
    assert sum(world.recoveries for world in worlds) > 0
    assert sum(world.moves for world in worlds) > 0
    assert sum(world.capped for world in worlds) > 0


def test_garbage_is_collected_in_the_end(tmp_path: Path) -> None:
    """After the dead and the losers, a few undisturbed rounds leave only the runs that kept manifests name."""
    for seed in SEEDS[:4]:
        world = _simulate(seed, tmp_path)
        log = world.twin.open()
        kept = [log.manifests.read(number).manifest for number in log.manifests.numbers()]
        assert len(kept) == 2
        assert world.twin.run_paths() == {run.path for manifest in kept for run in manifest.runs}
        assert log.kafka.offsets(log.ledger_topic, [0])[0].start == kept[0].position


@pytest.mark.soak
def test_snapshots_are_always_recoverable_for_long(tmp_path: Path) -> None:
    """The same, over many more histories."""
    for seed in range(1000, 1400):
        _simulate(seed, tmp_path)


def _no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest_only(kept: Sequence[Manifest], leases: Iterable[Lease]) -> Floor:
        return truncation_floor(kept[-1:], ())

    monkeypatch.setattr(cleanup, "truncation_floor", newest_only)


def _no_kept_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_only(
        listing: Iterable[str], own: Manifest, kept: Iterable[Manifest], over: Iterable[Lease]
    ) -> tuple[str, ...]:
        return condemned(listing, own, (), over)

    monkeypatch.setattr(cleanup, "condemned", own_only)


def _no_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_files: Sequence[SubscriptionFile], _identity: LogIdentity) -> list[Subscription]:
        return []

    monkeypatch.setattr(cleanup, "holding", nothing)


@pytest.mark.parametrize("remove", [_no_floor, _no_kept_files, _no_subscriptions])
def test_a_missing_guard_is_noticed(
    remove: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With any one guard removed, the simulation finds a history that breaks an invariant."""
    remove(monkeypatch)
    for seed in range(20):
        try:
            _simulate(seed, tmp_path)
        except (ViolationError, StatelogError, AssertionError):
            return
    pytest.fail("no history noticed that the guard is gone")
