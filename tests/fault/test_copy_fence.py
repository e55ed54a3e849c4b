"""A log that is finished into a copy while a writer is open: acknowledged commits are in the copy, or are named."""

from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import Fenced, LogInUse, OffsetGone
from statelog.materializer.copy import CRASH_POINTS
from statelog.materializer.round import CRASH_POINTS as ROUND_POINTS
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.names import COPIER
from tests.support.rigs.copies import Move, begun
from tests.support.told import told

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def move(tmp_path: Path) -> Move:
    """Return a log of two writers with two snapshots and a tail, of which nothing was copied yet."""
    return begun(tmp_path)


@pytest.mark.parametrize("point", ["after-fence", "after-plan", "after-close", "after-upload", "after-verify"])
def test_a_log_that_is_opened_behind_the_fence_is_not_finished(move: Move, point: str) -> None:
    """A log that is opened behind the fence is not finished: the copy stays closed, and goes on later.

    A commit there would be in neither log. The opener gets a warning, too.
    """

    def write(name: str) -> None:
        if name == point:
            with move.old.open() as log:
                move.write(log)

    with told("took this log over"), pytest.raises(LogInUse, match="still written to") as refused:
        Environment(crash=write).run(move.copy, finish=True)
    assert refused.value.facts["writers"] == "w"
    with move.new.open() as log, pytest.raises(OffsetGone):
        recover(log).to_dict()
    move.copy(finish=True)
    move.check_goes_on()


@pytest.mark.parametrize("point", [*CRASH_POINTS, *ROUND_POINTS])
def test_what_a_living_writer_was_told_is_in_the_finished_copy(move: Move, point: str) -> None:
    """A living writer's acknowledged commit is in the finished copy, wherever it falls.

    Before the fence it is copied; behind it the copy has fenced the writer.
    """
    writer = Writer(move.old.open(), "w")

    def write(name: str) -> None:
        if name == point:
            writer.put(b"late", b"1")
            try:
                writer.commit({"source": move.number + 1}, checkpoint_id=move.number + 1)
            except Fenced as fenced:
                assert COPIER in fenced.facts["detail"]  # type: ignore[operator]  # a text
                ends.append("fenced")
            else:
                move.model[b"late"], move.number = b"1", move.number + 1
                ends.append("acknowledged")

    ends: list[str] = []
    assert Environment(crash=write).run(move.copy, finish=True).is_finished
    assert ends == ["acknowledged" if point == "after-create" else "fenced"][: "truncate" not in point]
    writer.close()
    move.check_goes_on()


@pytest.mark.parametrize("point", ["after-list", "after-put", "after-publish"])
def test_a_log_that_is_opened_as_its_copy_is_finished_is_named(move: Move, point: str) -> None:
    """A copy fails if the log is opened behind the last check before the put, and names the checkpoints in no copy."""

    def write(name: str) -> None:
        if name == point:
            with move.old.open() as log, told("took this log over"):
                move.write(log, "v")

    kept = dict(move.model)
    with pytest.raises(LogInUse, match="written to behind that") as late:
        Environment(crash=write).run(move.copy, finish=True)
    assert (late.value.facts["writers"], late.value.facts["missing_checkpoints"]) == ("v", f"v: {move.number}")
    move.model, move.number = kept, move.number - 1
    move.check_goes_on()


def test_a_log_that_was_moved_says_so_to_whoever_opens_it(move: Move) -> None:
    """A moved log says so at every open, also once a round has put the copy's Open into a snapshot.

    An unfinished copy leaves no mark.
    """
    move.copy()
    with move.old.open() as log:
        move.write(log)
    move.copy(finish=True)
    for _ in range(2):
        with move.old.open() as log:
            with told("took this log over at ledger offset"):
                move.write(log)
            move.round(log)
    with move.new.open() as log:
        assert COPIER in log.commits()
        Writer(log, "w").close()
