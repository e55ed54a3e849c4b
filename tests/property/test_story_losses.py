"""A part of a story's log is really lost, at each of several points: an error comes before harm is done.

A client that goes on may be stopped by an error, or be right: a snapshot may hold the lost part. But no client gets a
state that history never had, and no commit is acknowledged that no reader sees.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from statelog.errors import CommitRefused, Damaged, StatelogError
from statelog.schemas.ledger.records import VOID_VALUE
from tests.sim import judge
from tests.sim.judge import Fact
from tests.sim.plays.log import PARTITIONS, SCENES, tell
from tests.sim.world import LOG, StuckError, World

pytestmark = pytest.mark.usefixtures("impatient", "collected")

LEDGER = f"{LOG}.ledger"


def _lose_ledger(world: World) -> None:
    """Lose the last three records, as an unclean election does."""
    world.cluster.lose_tail(LEDGER, 0, world.cluster.log(LEDGER, 0).end - 3)


def _lose_data(world: World) -> None:
    world.cluster.lose_tail(LOG, 0, world.cluster.log(LOG, 0).end - 2)


def _make_data_anew(world: World) -> None:
    world.cluster.recreate_topic(LOG)


def _make_ledger_anew(world: World) -> None:
    world.cluster.recreate_topic(LEDGER)


def _refill_log(world: World) -> None:
    """Re-create both topics and fill them with their records: only their ids differ."""
    for topic, count in ((LOG, PARTITIONS), (LEDGER, 1)):
        held = [world.cluster.log(topic, partition) for partition in range(count)]
        world.cluster.recreate_topic(topic)
        for partition, old in enumerate(held):
            new = world.cluster.log(topic, partition)
            for record in old.records:
                new.append(record.value)
            new.start = old.start


def _regrow_ledger(world: World) -> None:
    """Lose the tail of the ledger, and let later writes take the same offsets."""
    ledger = world.cluster.log(LEDGER, 0)
    end = ledger.end
    _lose_ledger(world)
    while ledger.end < end:
        ledger.append(VOID_VALUE)


def _regrow_data(world: World) -> None:
    data = world.cluster.log(LOG, 0)
    end = data.end
    _lose_data(world)
    while data.end < end:
        data.append(VOID_VALUE)


def _lose_manifests(world: World) -> None:
    """Restore the store from a copy of before the first round."""
    for info in world.disk.files(f"{LOG}/manifests/") + world.disk.files(f"{LOG}/runs/"):
        world.disk.remove(info.path)


def _damage_runs(world: World) -> None:
    for info in world.disk.files(f"{LOG}/runs/"):
        world.disk.flip_byte(info.path, info.size_bytes // 2)


SCENES_STRUCK = (2, 4, 6, 8, 10, 12)
Accident = Callable[[World], None]
ACCIDENTS = (
    _lose_ledger, _lose_data, _make_data_anew, _make_ledger_anew, _refill_log, _lose_manifests, _damage_runs
)  # fmt: skip
REGROWN = [(accident, scene) for accident in (_regrow_ledger, _regrow_data) for scene in (4, 6, 10)]
"""Cases with the newest snapshot above the loss: only clients that had read the lost records detect it."""
SURE = {
    (_make_data_anew, 2), (_make_data_anew, 6), (_make_data_anew, 10), (_make_ledger_anew, 2), (_make_ledger_anew, 6),
    (_make_ledger_anew, 10), (_lose_ledger, 6), (_lose_ledger, 10), (_lose_data, 10), (_lose_manifests, 10),
    (_damage_runs, 10), *((_refill_log, scene) for scene in SCENES_STRUCK), *REGROWN,
}  # fmt: skip
"""Cases where no client can be right any more, so that one has to be stopped."""


WITNESSED = {(_lose_ledger, 12), (_lose_data, 10), (_regrow_data, 10)}
"""Cases that only chunks of the data topic reveal, or lose: records carried in the ledger are there, or lost too."""
CASES = [*((accident, scene) for accident in ACCIDENTS for scene in SCENES_STRUCK), *REGROWN]


@pytest.mark.parametrize(
    ("accident", "scene"), CASES, ids=[f"{accident.__name__.strip('_')}-{scene}" for accident, scene in CASES]
)
def test_a_loss_is_told_before_it_does_harm(
    tmp_path: Path, accident: Accident, scene: int, request: pytest.FixtureRequest
) -> None:
    """Up to the error, if there is one, every state is history's, and every acknowledged commit is visible."""
    if (accident, scene) in WITNESSED:
        request.getfixturevalue("busy_ledger")
    assert scene < len(SCENES)
    before: list[Fact] = []
    seen: list[World] = []

    def strike(world: World) -> None:
        world.nemesis.is_quiet = True
        before.extend(judge.history_of(world))
        world.nemesis.is_quiet = False
        seen.append(world)
        accident(world)

    loud: BaseException | None = None
    try:
        tell(tmp_path, {}, {scene: strike})
    except (StatelogError, StuckError, AssertionError) as error:
        loud = error
    if (accident, scene) in SURE:
        assert loud is not None, "no process raised"
    world = seen[0]
    assert isinstance(loud, Damaged | CommitRefused | StuckError | None), loud
    later = [Fact(one.offset, one.tag) for one in world.attempts.values() if one.offset is not None]
    history = sorted({*before, *later})
    judge.check_reads(world, history)
