"""Every port operation and named point of a table's lives fails, answers with the past, or is the last of its life.

Whatever happens, each life finds the fold of the input up to `progress`, and no acknowledged commit is missing; and the
story comes to the same end. A failure names the operation and the fault.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.tables import Loading
from tests.support.story.nemesis import Kind, Operation, pairs_of_faults
from tests.support.story.table_story import tell

pytestmark = pytest.mark.usefixtures("impatient", "collected")


class Way(NamedTuple):
    """How the lives of a story keep their state, and when it is local."""

    is_kept: bool
    loading: Loading = Loading.FIRST

    def __str__(self) -> str:
        return f"{'rocksdb' if self.is_kept else 'dict'}-{self.loading}"


WAYS = [Way(is_kept, loading) for is_kept in (False, True) for loading in Loading]
KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 600
_known: dict["Way", list[Operation]] = {}


def _operations(way: Way) -> list[Operation]:
    """Those of the story without a fault."""
    if way not in _known:
        with tempfile.TemporaryDirectory() as scratch:
            told = tell(Path(scratch), {}, is_kept=way.is_kept, loading=way.loading)
        assert not told.world.errors
        assert not told.told
        _known[way] = told.world.nemesis.operations
    return _known[way]


def _complaint(faults: Mapping[int, Kind], way: Way) -> str:
    """What a life, or the end, has to say; empty if all is well."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            told = tell(Path(scratch), faults, is_kept=way.is_kept, loading=way.loading)
            assert told.world.nemesis.played, "no such operation was made"
            assert not [line for line in told.told if "set aside" in line], "a directory that was sound was set aside"
        except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
            return f"{type(error).__name__}: {error}"
    return ""


def _sweep(faults: Iterator[tuple[str, Mapping[int, Kind]]], way: Way) -> None:
    complaints = {name: said for name, played in faults if (said := _complaint(played, way))}
    assert not complaints, "\n".join(f"{name}: {said}" for name, said in complaints.items())


def _single(kind: Kind, way: Way, each: int = 1) -> Iterator[tuple[str, Mapping[int, Kind]]]:
    """Every `each`-th of the operations that can have this fault."""
    operations = [one for one in _operations(way) if one.can(kind)]
    return ((f"{one} {kind.value}", {one.number: kind}) for one in operations[::each])


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_a_directory_whose_owner_dies(kind: Kind) -> None:
    """At writes of its lives, and at named points: the next life reads from its place, or makes it anew."""
    _sweep(_single(kind, Way(True), each=9), Way(True))


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE, Kind.FATAL], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict: one operation fails, before or after its effect, or is its life's last."""
    _sweep(_single(kind, Way(False), each=7), Way(False))


@pytest.mark.parametrize("way", [Way(True, Loading.BEHIND), Way(False, Loading.ON_DEMAND)], ids=str)
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_on_a_snapshot(kind: Kind, way: Way) -> None:
    """Where lives open on a snapshot, and load what is missing in part, whole, or not at all."""
    _sweep(_single(kind, way, each=251 if kind is Kind.BEFORE else 67), way)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, way: Way) -> None:
    """On both backends, with old answers and late writes."""
    _sweep(_single(kind, way), way)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pairs_of_faults(way: Way) -> None:
    """Two faults in one story; the second one strikes whatever stands at its number then."""
    _sweep(pairs_of_faults(_operations(way), PAIRS), way)
