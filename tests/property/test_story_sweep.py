"""Every port operation of a fixed story fails, answers with the past, or is the last one of its process: one at a time.

Whatever happens, the judge finds that told and true are the same, that nobody was told of damage, and that the story
comes to the same end. A failure names the operation and the fault.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.story import judge
from tests.support.story.nemesis import Kind, Operation, pairs_of_faults
from tests.support.story.story import Told, tell

pytestmark = pytest.mark.usefixtures("impatient", "collected")

BLOCK = 45
BLOCKS = range(0, 405, BLOCK)
SINGLE = (
    Kind.BEFORE, Kind.AFTER, Kind.OLD, Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.FATAL, Kind.LATE
)  # fmt: skip
RARE = (Kind.OLDER, Kind.HALF, Kind.BROKEN)
PAIRS = 2_000
_known: list[Operation] = []


def _judge(told: Told) -> None:
    history = judge.history_of(told.world)
    judge.check_acknowledged(told.world, history)
    judge.check_reads(told.world, history)
    judge.check_warnings(told.warnings)
    judge.check_end(told.world, history)


def _operations(scratch: Path) -> list[Operation]:
    """Those of the story without a fault; it is told once by each process of the tests."""
    if not _known:
        told = tell(scratch, {})
        _judge(told)
        assert not told.world.errors
        _known.extend(told.world.nemesis.operations)
    return _known


def _is_one_of_a_look(operation: Operation) -> bool:
    """Whether it is the second or third question of a look at the log's identity; the first one stands for them."""
    return operation.method == "cluster_id" or (operation.method, operation.target) == ("describe_topic", "ledger")


def _complaint(scratch: Path, faults: Mapping[int, Kind]) -> str:
    """What the judge, or an actor that stopped, has to say; empty if all is well."""
    try:
        told = tell(scratch, faults)
        assert told.world.nemesis.played, "no such operation was made"
        _judge(told)
    except Exception as error:  # noqa: BLE001 - whatever went wrong is reported with the fault behind it
        return f"{type(error).__name__}: {error}"
    return ""


def _sweep(scratch: Path, faults: Iterator[tuple[str, Mapping[int, Kind]]]) -> None:
    complaints = {name: complaint for name, played in faults if (complaint := _complaint(scratch, played))}
    assert not complaints, "\n".join(f"{name}: {complaint}" for name, complaint in complaints.items())


def test_the_story_without_a_fault(tmp_path: Path) -> None:
    """It has so many operations, is the same each time, and truncates both topics."""
    operations = _operations(tmp_path)
    assert BLOCKS.stop - 2 * BLOCK < len(operations) <= BLOCKS.stop, "the blocks hold all of them, and few are empty"
    told = tell(tmp_path, {})
    assert operations == told.world.nemesis.operations
    assert all(told.world.cluster.log(topic, 0).start > 0 for topic in ("story", "story.ledger"))
    assert [read.reader for read in told.world.reads] == [
        "reader", "reader", "follower", "follower", "w2", "last", "end"
    ]  # fmt: skip
    assert sum(attempt.refused for attempt in told.world.attempts.values()) == 1, "the late one was fenced"


@pytest.mark.parametrize("first", BLOCKS)
@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.value)
def test_one_fault(tmp_path: Path, kind: Kind, first: int) -> None:
    """One operation fails, before or after its effect, is answered with the past, or is its process' last."""
    block = _operations(tmp_path)[first : first + BLOCK]
    operations = [one for one in block if one.can(kind) and not _is_one_of_a_look(one)]
    _sweep(tmp_path, ((f"{one} {kind.value}", {one.number: kind}) for one in operations))


@pytest.mark.parametrize("kind", [Kind.OLDER, Kind.HALF], ids=lambda kind: kind.value)
def test_an_odd_answer_and_a_broker_that_knows_of_no_topic(tmp_path: Path, kind: Kind) -> None:
    """Who asks behind a doubtful answer who the topic is, and is told that there is none, asks both again."""
    doubted = [one for one in _operations(tmp_path) if one.method == "offsets" and one.can(kind)]
    assert doubted
    _sweep(tmp_path, ((f"{one} {kind.value}", {one.number: kind, one.number + 1: Kind.OLD}) for one in doubted))


@pytest.mark.soak
@pytest.mark.parametrize("kind", (*RARE, Kind.BEFORE, Kind.OLD), ids=lambda kind: kind.value)
def test_one_rare_fault(tmp_path: Path, kind: Kind) -> None:
    """One answer is much older, or lacks a part; one read breaks off; and the rest of the looks at identity."""
    operations = [one for one in _operations(tmp_path) if one.can(kind) and (kind in RARE or _is_one_of_a_look(one))]
    _sweep(tmp_path, ((f"{one} {kind.value}", {one.number: kind}) for one in operations))


@pytest.mark.soak
def test_pairs_of_faults(tmp_path: Path) -> None:
    """Two faults in one story; the second one strikes whatever stands at its number then."""
    _sweep(tmp_path, pairs_of_faults(_operations(tmp_path), PAIRS))
