"""Every port operation and named point of the incarnations of a table that sends fails, or is the last one.

In every case a committed reader sees each message of history once, in order, and none that is not history. Without
transactions it sees some twice, and the header tells which. A failure names the operation and the fault.
"""

from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from statelog.schemas.outputs.stored import StoredPlace
from statelog.tables.outputs import TableOutputs
from statelog.tables.publishing.hold import OutputHold
from tests.sim.nemesis import Kind, Operation
from tests.sim.plays.outputs import Guarantee, tell
from tests.sim.sweep import Faults, Sweep
from tests.sim.world import World

pytestmark = pytest.mark.usefixtures("impatient", "collected")


class Way(NamedTuple):
    """Whether there are transactions, and whether a commit's record carries its messages."""

    outputs: Guarantee = "exactly-once"
    is_carried: bool = True

    def __str__(self) -> str:
        return f"{self.outputs}-{'carried' if self.is_carried else 'pending'}"


GUARANTEES: tuple[Guarantee, ...] = ("exactly-once", "at-least-once")
WAYS = [Way(guarantee, is_carried) for guarantee in GUARANTEES for is_carried in (True, False)]
KINDS = (Kind.BEFORE, Kind.AFTER, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE)
PUBLISHING = frozenset({
    "init_transactions", "flush", "send_offsets", "commit_transaction", "abort_transaction", "published",
})  # fmt: skip
PAIRS = 600


def _tell(scratch: Path, faults: Faults, way: Way) -> World:
    return tell(scratch, faults, outputs=way.outputs, is_carried=way.is_carried)


SWEEP = Sweep(_tell)


def _publishes(one: Operation) -> bool:
    return one.method in PUBLISHING


@pytest.mark.parametrize("way", [Way(), Way(is_carried=False), Way("at-least-once")], ids=str)
@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.value)
def test_a_fault_while_it_publishes(kind: Kind, way: Way) -> None:
    """A request of the publisher fails, before or after its effect, or its process dies there."""
    SWEEP.play(SWEEP.single(kind, way, only=_publishes, each=7))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_fault_anywhere(kind: Kind) -> None:
    """Any other operation fails, or is the last one of its process."""
    SWEEP.play(SWEEP.single(kind, Way(is_carried=False), each=41))


def _nothing(*_: object) -> None:
    """Do and find nothing."""


GUARDS: dict[str, tuple[object, str, object]] = {
    "the stored place": (StoredPlace, "of", _nothing),
    "the hold on the log": (OutputHold, "claim", Mock(return_value="id")),
    "what a former owner left": (TableOutputs, "begin", _nothing),
}
"""Guards of the publisher, and what they are without themselves."""


@pytest.mark.parametrize("guard", GUARDS)
def test_every_guard_prevents_a_violation(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a guard, a death or a lost answer of the publisher makes a message come twice, or never."""
    monkeypatch.setattr(*GUARDS[guard])
    kinds = (Kind.AFTER, Kind.CRASH_BEFORE)
    found = (SWEEP.complaint(one) for kind in kinds for one in SWEEP.single(kind, Way(), only=_publishes, each=2))
    assert any(found)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_fault(kind: Kind, way: Way) -> None:
    """Every fault at every operation."""
    SWEEP.play(SWEEP.single(kind, way))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pairs_of_faults(way: Way) -> None:
    """Two faults strike one story; the second one strikes the operation that has its number then."""
    SWEEP.play(SWEEP.pairs(PAIRS, [way]))
