"""Every port operation of a fixed story fails, answers with the past, or is the last one of its process: one at a time.

In every case the judge finds that acknowledgements are true and that no process got a damage error. The story comes to
the same end. A failure names the operation and the fault. Repeated calls for the same thing on the same code path are
one to the everyday run. Half of the kinds strike it; `make soak` has all.
"""

import re
from pathlib import Path

import pytest

from tests.sim import judge
from tests.sim.nemesis import Kind, Operation
from tests.sim.plays.log import tell
from tests.sim.sweep import Faults, Sweep, Telling
from tests.sim.world import World

pytestmark = pytest.mark.usefixtures("impatient", "collected")

BLOCK = 45
BLOCKS = range(0, 360, BLOCK)
SINGLE = (
    Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE
)  # fmt: skip
PAIRS = 2_000


def _tell(scratch: Path, faults: Faults, _way: None) -> World:
    world = tell(scratch, faults)
    judge.check(world)
    return world


SWEEP = Sweep(_tell)


def _is_one_of_a_look(operation: Operation) -> bool:
    """Return whether the operation is the second or third call of an identity check; the first one stands for them."""
    return operation.method == "cluster_id" or (operation.method, operation.target) == ("describe_topic", "ledger")


def _is_first(operation: Operation) -> bool:
    """Return whether no equal operation precedes it."""
    like = operation._replace(number=0, target=_unnumbered(operation))
    return all(
        one._replace(number=0, target=_unnumbered(one)) != like for one in SWEEP.operations(None)[: operation.number]
    )


def _unnumbered(operation: Operation) -> str:
    return re.sub(r"\d+", "", operation.target)


def test_the_story_without_a_fault(tmp_path: Path) -> None:
    """The story without a fault has so many operations, is the same each time, and truncates both topics."""
    operations = SWEEP.operations(None)
    assert BLOCKS.stop - 2 * BLOCK < len(operations) <= BLOCKS.stop, "the blocks hold all of them, and few are empty"
    world = tell(tmp_path, {})
    assert operations == world.nemesis.operations
    assert all(world.cluster.log(topic, 0).start > 0 for topic in ("story", "story.ledger"))
    assert [read.reader for read in world.reads] == [
        "reader", "reader", "follower", "follower", "w2", "last", "end"
    ]  # fmt: skip
    assert sum(attempt.refused for attempt in world.attempts.values()) == 1, "the late one was fenced"


@pytest.mark.parametrize("first", BLOCKS)
@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.value)
def test_one_fault(kind: Kind, first: int) -> None:
    """One operation fails, before or after its effect, gets an old answer, or is its process' last.

    Each operation has every other kind.
    """
    block = range(first, first + BLOCK)
    turn = SINGLE.index(kind) % 2

    def is_chosen(one: Operation) -> bool:
        return one.number in block and one.number % 2 == turn and _is_first(one) and not _is_one_of_a_look(one)

    SWEEP.play(SWEEP.single(kind, None, only=is_chosen))


@pytest.mark.parametrize("kind", [Kind.OLDER, Kind.HALF], ids=lambda kind: kind.value)
def test_an_odd_answer_and_a_broker_that_knows_of_no_topic(kind: Kind) -> None:
    """A client behind a doubtful answer asks both again when the broker knows of no topic."""
    doubted = [one for one in SWEEP.operations(None) if one.method == "offsets" and one.can(kind) and _is_first(one)]
    assert doubted
    SWEEP.play(Telling(f"{one} {kind.value}", {one.number: kind, one.number + 1: Kind.OLD}, None) for one in doubted)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_one_fault_wherever_it_can_be(kind: Kind) -> None:
    """Every operation has a fault, also repeated ones and calls of an identity check.

    Rare kinds: an answer that is much older or lacks a part, and a read that breaks off.
    """
    SWEEP.play(SWEEP.single(kind, None))


@pytest.mark.soak
def test_pairs_of_faults() -> None:
    """Two faults strike one story; the second one strikes the operation that has its number then."""
    SWEEP.play(SWEEP.pairs(PAIRS, [None]))
