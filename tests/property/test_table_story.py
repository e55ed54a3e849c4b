"""Every port operation and named point of a table's lives fails, answers with the past, or is the last of its life.

Whatever happens, each life finds the fold of the input up to `progress`, and no acknowledged commit is missing; and the
story comes to the same end. A failure names the operation and the fault.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.story.nemesis import Kind, Operation
from tests.support.story.table_story import tell

pytestmark = pytest.mark.usefixtures("impatient")

KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 600
_known: dict[bool, list[Operation]] = {}


def _operations(*, is_kept: bool) -> list[Operation]:
    """Those of the story without a fault."""
    if is_kept not in _known:
        with tempfile.TemporaryDirectory() as scratch:
            told = tell(Path(scratch), {}, is_kept=is_kept)
        assert not told.world.errors
        assert not told.told
        _known[is_kept] = told.world.nemesis.operations
    return _known[is_kept]


def _complaint(faults: Mapping[int, Kind], *, is_kept: bool) -> str:
    """What a life, or the end, has to say; empty if all is well."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            told = tell(Path(scratch), faults, is_kept=is_kept)
            assert told.world.nemesis.played, "no such operation was made"
            assert not [line for line in told.told if "set aside" in line], "a directory that was sound was set aside"
        except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
            return f"{type(error).__name__}: {error}"
    return ""


def _sweep(faults: Iterator[tuple[str, Mapping[int, Kind]]], *, is_kept: bool) -> None:
    complaints = {name: said for name, played in faults if (said := _complaint(played, is_kept=is_kept))}
    assert not complaints, "\n".join(f"{name}: {said}" for name, said in complaints.items())


def _single(kind: Kind, *, is_kept: bool, each: int = 1) -> Iterator[tuple[str, Mapping[int, Kind]]]:
    """Every `each`-th of the operations that can have this fault."""
    operations = [one for one in _operations(is_kept=is_kept) if one.can(kind)]
    return ((f"{one} {kind.value}", {one.number: kind}) for one in operations[::each])


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_a_directory_whose_owner_dies(kind: Kind) -> None:
    """At writes of its lives, and at named points: the next life reads from its place, or makes it anew."""
    _sweep(_single(kind, is_kept=True, each=9), is_kept=True)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE, Kind.FATAL], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict: one operation fails, before or after its effect, or is its life's last."""
    _sweep(_single(kind, is_kept=False, each=7), is_kept=False)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, is_kept: bool) -> None:
    """On both backends, with old answers and late writes."""
    _sweep(_single(kind, is_kept=is_kept), is_kept=is_kept)


@pytest.mark.soak
@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
def test_pairs_of_faults(is_kept: bool) -> None:
    """Two faults in one story; the second one strikes whatever stands at its number then."""
    operations, chance = _operations(is_kept=is_kept), random.Random(7)

    def pairs() -> Iterator[tuple[str, Mapping[int, Kind]]]:
        for _ in range(PAIRS):
            one = chance.choice(operations)
            first = chance.choice([kind for kind in Kind if one.can(kind)])
            second = min(one.number + 1 + int(chance.expovariate(0.05)), len(operations) - 1)
            other = chance.choice([kind for kind in Kind if operations[second].can(kind)])
            yield f"{one} {first.value}, then {second} {other.value}", {one.number: first, second: other}

    _sweep(pairs(), is_kept=is_kept)
