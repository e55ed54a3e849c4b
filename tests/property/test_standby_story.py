"""A takeover by a standby, told again and again: the zombie commits at every moment of it; operations fail and kill.

Whatever happens, every state that anybody sees is the fold of the input up to its progress, every commit that an owner
was told of is in the state of the next one, a former owner hears that it is over, and the story comes to the same end.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sim.nemesis import Kind
from tests.sim.plays.standby import tell
from tests.sim.sweep import Faults, Sweep, Telling
from tests.sim.world import World

pytestmark = pytest.mark.usefixtures("impatient", "collected")


class Way(NamedTuple):
    """How the state is kept, and the moment of the promotion at which the zombie commits."""

    is_kept: bool
    zombie_at: int = -1


KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 400
ZOMBIES = (-1, 2, 6)
"""Moments at which the zombie commits where something else fails as well: never, before the Open, and behind it."""


def _tell(scratch: Path, faults: Faults, way: Way) -> World:
    world = tell(scratch, faults, is_kept=way.is_kept, zombie_at=way.zombie_at).world
    assert not [line for line in world.told if "set aside" in line], "a directory that was sound was set aside"
    assert faults or way.zombie_at not in ZOMBIES or not world.told
    return world


SWEEP = Sweep(_tell)


def _sweep_moments(*, is_kept: bool, each: int = 1) -> None:
    """The zombie at every `each`-th moment of the promotion."""
    with tempfile.TemporaryDirectory() as scratch:
        play = tell(Path(scratch), {}, is_kept=is_kept)
    assert not play.world.told
    assert play.moments > 10
    SWEEP.play(Telling(f"at {at}", {}, Way(is_kept, at)) for at in range(0, play.moments, each))


def _sweep_single(kind: Kind, *, is_kept: bool, each: int = 1) -> None:
    """Every `each`-th of the operations that can have this fault, the zombie at one of its moments."""
    for number, at in enumerate(ZOMBIES):
        SWEEP.play(SWEEP.single(kind, Way(is_kept, at), first=number * each, each=len(ZOMBIES) * each))


def test_a_zombie_at_any_moment() -> None:
    """What it was told before the Open is in the state; behind it, it is told that it is over."""
    _sweep_moments(is_kept=False, each=2)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict: one operation fails, before or after its effect, or is its process's last."""
    _sweep_single(kind, is_kept=False, each=71)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_every_moment(is_kept: bool) -> None:
    """On both backends."""
    _sweep_moments(is_kept=is_kept)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, is_kept: bool) -> None:
    """On both backends, with old answers and late writes."""
    _sweep_single(kind, is_kept=is_kept)


@pytest.mark.soak
def test_pairs_of_faults() -> None:
    """Two faults in one story; the second one strikes whatever stands at its number then."""
    SWEEP.play(SWEEP.pairs(PAIRS, [Way(is_kept=False, zombie_at=at) for at in ZOMBIES]))
