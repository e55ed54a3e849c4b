"""Every port operation and named point of a table's incarnations fails, answers with the past, or is the last.

In every case each incarnation finds the fold of the input up to `progress`, and no acknowledged commit is missing. The
story comes to the same end. A failure names the operation and the fault.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.tables import Loading
from tests.sim.nemesis import Kind
from tests.sim.plays.table import tell
from tests.sim.sweep import Faults, Sweep
from tests.sim.world import World

pytestmark = pytest.mark.usefixtures("impatient", "collected")


class Way(NamedTuple):
    """The storage of the state in a story's incarnations, when it is local, and whether some rows expire."""

    is_kept: bool
    loading: Loading = Loading.FIRST
    is_timed: bool = False

    def __str__(self) -> str:
        return f"{'rocksdb' if self.is_kept else 'dict'}-{self.loading}{'-dues' if self.is_timed else ''}"


TIMED = [Way(is_kept, loading, True) for is_kept in (False, True) for loading in (Loading.FIRST, Loading.BEHIND)]
WAYS = [*(Way(is_kept, loading) for is_kept in (False, True) for loading in Loading), *TIMED]
KINDS = (Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PAIRS = 600
_TRUNCATED = "the log was truncated past it"
"""As after a round that got an old end: the next round truncates below that one's snapshot."""


def _tell(scratch: Path, faults: Faults, way: Way) -> World:
    world = tell(scratch, faults, is_kept=way.is_kept, loading=way.loading, is_timed=way.is_timed)
    aside = [line for line in world.told if "set aside" in line and not line.endswith(_TRUNCATED)]
    assert not aside, f"a sound directory was quarantined: {aside}"
    assert faults or not world.told
    return world


SWEEP = Sweep(_tell)


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_a_directory_whose_owner_dies(kind: Kind) -> None:
    """After a death at writes and named points the next incarnation reads on from the directory, or re-creates it."""
    SWEEP.play(SWEEP.single(kind, Way(True), each=17))


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE, Kind.FATAL], ids=lambda kind: kind.value)
def test_one_fault(kind: Kind) -> None:
    """In a dict one operation fails, before or after its effect, or is its incarnation's last."""
    SWEEP.play(SWEEP.single(kind, Way(False), each=13))


@pytest.mark.parametrize("way", [Way(True, Loading.BEHIND), Way(False, Loading.ON_DEMAND)], ids=str)
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_on_a_snapshot(kind: Kind, way: Way) -> None:
    """Incarnations open on a snapshot, and load the missing part partly, whole, or not at all."""
    SWEEP.play(SWEEP.single(kind, way, each=251 if kind is Kind.BEFORE else 67))


@pytest.mark.parametrize("way", TIMED, ids=str)
@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER], ids=lambda kind: kind.value)
def test_rows_that_expire(kind: Kind, way: Way) -> None:
    """After a death at writes and named points every row has its due, and no row is left once its due has come."""
    SWEEP.play(SWEEP.single(kind, way, each=41))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, way: Way) -> None:
    """Every fault is survived on both backends, with old answers and late writes."""
    SWEEP.play(SWEEP.single(kind, way))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pairs_of_faults(way: Way) -> None:
    """Two faults strike one story; the second one strikes the operation that has its number then."""
    SWEEP.play(SWEEP.pairs(PAIRS, [way]))
