"""A takeover by a standby, told again and again: the zombie commits at every moment of it; operations fail and kill.

Whatever happens, every state that anybody sees is the fold of the input up to its progress, every commit that an owner
was told of is in the state of the next one, a former owner hears that it is over, and the story comes to the same end.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.story.nemesis import Kind, Operation
from tests.support.story.standby_story import tell

pytestmark = pytest.mark.usefixtures("impatient", "collected")

KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 400
ZOMBIES = (-1, 2, 6)
"""Moments at which the zombie commits where something else fails as well: never, before the Open, and behind it."""
_known: dict[tuple[bool, int], tuple[list[Operation], int]] = {}


def _story(*, is_kept: bool, zombie_at: int = -1) -> tuple[list[Operation], int]:
    """The operations of the story without a fault, and the moments of its promotion."""
    if (is_kept, zombie_at) not in _known:
        with tempfile.TemporaryDirectory() as scratch:
            told = tell(Path(scratch), {}, is_kept=is_kept, zombie_at=zombie_at)
        assert not told.world.errors
        assert not told.told
        _known[is_kept, zombie_at] = told.world.nemesis.operations, told.moments
    return _known[is_kept, zombie_at]


def _complaint(faults: Mapping[int, Kind], zombie_at: int, *, is_kept: bool) -> str:
    """What is wrong; empty if all is well."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            told = tell(Path(scratch), faults, is_kept=is_kept, zombie_at=zombie_at)
            assert told.world.nemesis.played or not faults, "no such operation was made"
            assert not [line for line in told.told if "set aside" in line], "a directory that was sound was set aside"
        except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
            return f"{type(error).__name__}: {error}"
    return ""


def _sweep(stories: Iterator[tuple[str, Mapping[int, Kind], int]], *, is_kept: bool) -> None:
    complaints = {name: said for name, faults, at in stories if (said := _complaint(faults, at, is_kept=is_kept))}
    assert not complaints, "\n".join(f"{name}: {said}" for name, said in complaints.items())


def _single(kind: Kind, *, is_kept: bool, each: int = 1) -> Iterator[tuple[str, Mapping[int, Kind], int]]:
    """Every `each`-th of the operations that can have this fault, the zombie at one of its moments."""
    for number, at in enumerate(ZOMBIES):
        operations, _ = _story(is_kept=is_kept, zombie_at=at)
        chosen = [one for one in operations if one.can(kind)][number * each :: len(ZOMBIES) * each]
        yield from ((f"{one} {kind.value}, {at}", {one.number: kind}, at) for one in chosen)


def test_a_zombie_at_any_moment() -> None:
    """What it was told before the Open is in the state; behind it, it is told that it is over."""
    _, moments = _story(is_kept=False)
    assert moments > 10
    _sweep(((f"at {at}", {}, at) for at in range(0, moments, 2)), is_kept=False)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict: one operation fails, before or after its effect, or is its process's last."""
    _sweep(_single(kind, is_kept=False, each=71), is_kept=False)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_every_moment(is_kept: bool) -> None:
    """On both backends."""
    _, moments = _story(is_kept=is_kept)
    _sweep(((f"at {at}", {}, at) for at in range(moments)), is_kept=is_kept)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, is_kept: bool) -> None:
    """On both backends, with old answers and late writes."""
    _sweep(_single(kind, is_kept=is_kept), is_kept=is_kept)


@pytest.mark.soak
def test_pairs_of_faults() -> None:
    """Two faults in one story; the second one strikes whatever stands at its number then."""
    chance = random.Random(7)

    def pairs() -> Iterator[tuple[str, Mapping[int, Kind], int]]:
        for _ in range(PAIRS):
            at = chance.choice(ZOMBIES)
            operations, _ = _story(is_kept=False, zombie_at=at)
            one = chance.choice(operations)
            first = chance.choice([kind for kind in Kind if one.can(kind)])
            second = min(one.number + 1 + int(chance.expovariate(0.05)), len(operations) - 1)
            other = chance.choice([kind for kind in Kind if operations[second].can(kind)])
            yield f"{one} {first.value}, then {second} {other.value}, {at}", {one.number: first, second: other}, at

    _sweep(pairs(), is_kept=False)
