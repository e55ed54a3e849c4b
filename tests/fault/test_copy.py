"""A log that is copied into another one: the copy is closed until it is whole and finished, wherever the copier dies.

Then it goes on as the log would have. On the twins, as two clusters with a store each. Its writers: `test_copy_fence`.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import (
    AlreadyExists,
    AnchorMismatch,
    BeyondEnd,
    ConfigError,
    Corrupt,
    Fenced,
    IdentityChanged,
    InvalidName,
    LogInUse,
    NotFound,
    OffsetGone,
)
from statelog.log import Log, Where, accept_data_loss
from statelog.log.log import open_snapshots
from statelog.materializer import engine as engine_module
from statelog.materializer.copy import CRASH_POINTS, copy_log, finish_copy
from statelog.materializer.engine import LocalRunRef
from statelog.materializer.round import CRASH_POINTS as ROUND_POINTS
from statelog.materializer.round import run_round
from statelog.materializer.tasks import TaskOutput
from statelog.materializer.work import RoundWork
from statelog.producer.writer import Writer
from statelog.reading.hold import Terms
from statelog.recovery import AtPosition, plan_changes, read_changes, recover, recover_snapshot
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.names import COPIER
from statelog.testing import Crash, crash_at
from statelog.testing.cluster import MemoryCluster
from statelog.testing.store import MemoryStore
from tests.support.faults.death import Death, dying
from tests.support.rigs.copies import Move, begun
from tests.support.rigs.kafka import write_all
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.told import told
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("impatient")

POINTS = [*CRASH_POINTS, *ROUND_POINTS]
V1 = '{"type": "record", "name": "v", "fields": [{"name": "a", "type": "long"}]}'
V2 = (
    '{"type": "record", "name": "v", "fields": [{"name": "a", "type": "long"},'
    ' {"name": "b", "type": ["null", "string"], "default": null}]}'
)


@pytest.fixture
def move(tmp_path: Path) -> Move:
    """Return a log of two writers with two snapshots and a tail, of which nothing was copied yet."""
    return begun(tmp_path)


# ---- the ordinary course


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_a_copy_goes_on_as_the_log_would_have(move: Move, copies: int) -> None:
    """A copy has the whole state first, then the new part, and finishes last; writers continue their checkpoints."""
    for number in range(copies):
        is_last = number == copies - 1
        done = move.copy(finish=is_last)
        assert (done.is_whole, done.is_finished, done.writers) == (number == 0, is_last, 2)
        assert done.verified_rows == len(move.model)
        if not is_last:
            move.check_closed()
            with recover_snapshot("new", Where(None, move.new.store())) as alone:
                assert alone.to_dict() == move.model
            with move.old.open() as log:
                move.write(log, "w" if number % 2 else "v")
    with move.old.open() as old, move.new.open() as new:
        theirs, ours = old.commits(), dict(new.commits())
        origin = ours.pop(COPIER)
        assert origin.metadata["log"] == "old"
        assert {name: last[0::2] for name, last in ours.items()} == {name: last[0::2] for name, last in theirs.items()}
    move.check_goes_on()


def test_nothing_new_is_nothing_done(move: Move) -> None:
    """A copy without news puts neither a manifest nor a record."""
    first = move.copy()
    with move.new.open() as log:
        before = log.manifests.numbers(), log.ledger.end()
        again = move.copy()
        assert (again.source_position, again.position, again.changes) == (first.source_position, first.position, 0)
        assert (log.manifests.numbers(), log.ledger.end()) == before


def test_two_copies_begin_at_once(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies that begin at once share the log that one of them made, and neither hints at a deletion."""
    opened, rivals = Log.open, iter([move.copy])

    def open_late(name: str, where: Where) -> Log:
        try:
            return opened(name, where)
        except NotFound:
            next(rivals, lambda: None)()
            raise

    monkeypatch.setattr(Log, "open", open_late)
    assert move.copy(finish=True).is_finished
    move.check_goes_on()


def test_an_empty_log_is_copied_too(tmp_path: Path) -> None:
    """The copy of an empty log has no runs, and is closed all the same."""
    move = Move(tmp_path)
    move.old.create().close()
    assert move.copy().changes == 0
    move.check_closed()
    move.copy(finish=True)
    move.check_goes_on()


def test_what_the_log_truncated_is_copied_whole_again(move: Move) -> None:
    """A copy is whole after two rounds, though no topic has the changes since the last; deleted keys stay deleted."""
    move.copy()
    with move.old.open() as log:
        for _ in range(3):
            move.write(log)
            move.round(log)
        with Writer(log, "v") as writer:
            for key in [key for key in move.model if key.startswith(b"v")]:
                writer.delete(key)
                del move.model[key]
            writer.commit()
        for _ in range(2):
            move.write(log)
            move.round(log)
    with told("copied again"):
        assert move.copy().is_whole
    assert not move.copy(finish=True).is_whole
    move.check_goes_on()


def test_a_table_goes_on_in_the_copy(tmp_path: Path) -> None:
    """A table goes on in the copy with its progress; its old log's directory is quarantined, and not reused."""
    old, new = twin_rig("log"), twin_rig("log", cluster=MemoryCluster(cluster_id="another"))
    directory = tmp_path / "state"
    tables = TableRig(old, directory)
    with tables.open() as table:
        table[b"a"], table[b"b"] = b"1", b"2"
        table.commit({"offset": 7})
    with old.open() as log:
        copy_log(log, "log", new.where(), finish=True, settings=settings_for(tmp_path))
    moved = TableRig(new, directory)
    with told("set aside"):
        moved.open().close()
    for number in range(2):
        with moved.open() as table:
            assert (table[b"a"], table[b"b"]) == (b"1" if number == 0 else b"3", b"2")
            assert table.progress == {"offset": 7 + number}
            table[b"a"] = b"3"
            table.commit({"offset": 8 + number})


def test_values_keep_their_schemas(tmp_path: Path) -> None:
    """Values keep their schemas, each under its id, also one that is new since the last copy."""
    old, new = twin_rig("old"), twin_rig("new", cluster=MemoryCluster(cluster_id="another"))
    with old.create(value_schema=V1) as log:
        with Writer(log, "w") as writer:
            writer.put(b"k", {"a": 1})
            writer.commit()
        copy_log(log, "new", new.where(), settings=settings_for(tmp_path))
        log.evolve_value_schema(V2)
        with Writer(log, "w") as writer:
            writer.put(b"l", {"a": 2, "b": "x"})
            writer.commit()
        done = copy_log(log, "new", new.where(), finish=True, settings=settings_for(tmp_path))
        assert done.verified_rows == 2
        with new.open() as copy:
            assert [one.avsc for one in copy.value_schemas.all()] == [one.avsc for one in log.value_schemas.all()]
            assert recover(copy).to_dict() == {b"k": {"a": 1, "b": None}, b"l": {"a": 2, "b": "x"}}


def test_the_history_of_before_is_not_held(move: Move) -> None:
    """Changes and states begin where the copy was finished; lower positions are refused with the reason."""
    move.copy()
    done = move.copy(finish=True)
    with move.new.open() as log:
        move.write(log)
        plan = plan_changes(log)
        assert plan.start_position == done.position
        assert sum(batch.num_rows for batch in read_changes(log, plan)) > 0
        with pytest.raises(NotFound) as refused:
            plan_changes(log, AtPosition(done.position - 1))
        assert refused.value.facts["oldest_position"] == done.position


def test_nobody_writes_by_the_name_of_the_copy(move: Move) -> None:
    """No writer takes the copier's reserved name, whose last commit names the copy's source."""
    with move.old.open() as log, pytest.raises(InvalidName, match="reserved"):
        Writer(log, COPIER)


def test_a_copy_of_a_copy_names_the_log_that_it_is_one_of(move: Move, tmp_path: Path) -> None:
    """A copy of a copy names the log that it was copied from: a log that was moved once is moved again."""
    move.copy(finish=True)
    third = twin_rig("third", cluster=MemoryCluster(cluster_id="a third"))
    with move.new.open() as log:
        copy_log(log, "third", third.where(), finish=True, settings=settings_for(tmp_path))
    with third.open() as log:
        assert log.commits()[COPIER].metadata["log"] == "new"
        assert recover(log).to_dict() == move.model


# ---- death


@pytest.mark.parametrize(
    ("phase", "point"),
    [
        (phase, point)
        for phase in ("first", "next", "finish")
        for point in POINTS
        if phase != "first" or "truncate" not in point  # One manifest alone truncates nothing.
    ],
)
def test_a_copier_that_dies_at_a_named_point_goes_on(phase: str, point: str, tmp_path: Path) -> None:
    """A dead copier leaves a closed or the finished copy; its next run ends as if it had never died."""
    move = begun(tmp_path)
    if phase != "first":
        move.copy()
        with move.old.open() as log:
            move.write(log)
    reached: list[str] = []

    def crash(name: str) -> None:
        reached.append(name)
        if name == point:
            raise Crash

    with pytest.raises(Crash):
        Environment(crash=crash).run(move.copy, finish=phase == "finish")
    assert reached[-1] == point
    settle(move)
    move.check_goes_on()


def settle(move: Move) -> None:
    """Run the copy again to its end, after a death, unless it died behind the final put."""
    try:
        with move.new.open() as log:
            assert recover(log).to_dict() == move.model
        with pytest.raises(AlreadyExists, match="finished"):
            move.copy(finish=True)
    except (NotFound, OffsetGone):
        move.copy(finish=True)


@pytest.mark.parametrize("each", [pytest.param(2, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
@pytest.mark.parametrize("after", [False, True])
def test_a_copier_that_dies_at_any_call_goes_on(after: bool, each: int, tmp_path: Path) -> None:
    """A copier may die before or after any call to Kafka or a store, on either side: its next run finishes."""
    dead = 0
    for turn, dead in enumerate(count(int(after) % each, each)):
        move = begun(tmp_path)
        death = Death(at=dead, after=after)
        source, there = (
            replace(rig.where(), kafka=dying(rig.kafka(), death), root=dying(rig.store(), death))
            for rig in (move.old, move.new)
        )
        with suppress(Death):
            move.copy(there, source, finish=True)
            break
        settle(move)
        if turn % 20 == 0:
            move.check_goes_on()
    assert dead > 60


# ---- other processes


@pytest.mark.parametrize(
    "point", ["after-plan", "after-newest", "after-close", "after-upload", "after-verify", "after-list"]
)
def test_a_copier_that_slept_takes_nothing_back(move: Move, point: str) -> None:
    """A copier that slept learns that another one finished, and its Restart costs the writers at most an Open."""
    move.copy()
    with move.old.open() as log:
        move.write(log)
    is_asleep = [True]

    def sleep(name: str) -> None:
        if name == point and is_asleep:
            is_asleep.clear()
            move.copy(finish=True)
            log = move.new.open()
            move.write(log)
            writers.append(Writer(log, "v"))

    writers: list[Writer] = []
    with pytest.raises((AlreadyExists, LogInUse), match=r"finished|faster"):
        Environment(crash=sleep).run(move.copy)
    if point == "after-newest":  # Its Restart lies behind the writer's Open.
        with pytest.raises(Fenced):
            writers[0].commit()
    writers[0].close()
    move.check_goes_on()


def test_what_is_copied_is_held_until_it_was_compared(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a copied snapshot is renewed while its files are uploaded and read back, however long that takes."""
    monkeypatch.setattr("statelog.materializer.copy._TERMS", Terms("statelog copy", 0.3))
    renewed = list[str]()

    def note(method: str, path: str) -> None:
        renewed.extend([path] * (method == "put" and path.startswith("leases/")))

    def wait(name: str) -> None:
        if name == "after-upload":
            before = len(renewed)
            wait_for(lambda: len(renewed) > before)

    source = replace(move.old.where(), root=MemoryStore(move.old.disk, "old", faults=note))
    Environment(crash=wait).run(move.copy, source=source)
    move.copy(finish=True)
    move.check_goes_on()


def test_a_log_that_moved_on_before_its_copy_was_compared_is_told(move: Move) -> None:
    """A log that moved on without a lease before its copy was compared raises, loses nothing, and is copied again."""

    def move_on() -> None:
        with move.old.open() as log:
            for info in list(log.store.list("leases/")):
                log.store.delete(info.path)
            for _ in range(4):
                move.write(log)
                move.round(log)

    def crash(name: str) -> None:
        if name == "after-upload":
            Environment().run(move_on)

    with pytest.raises(LogInUse, match="moved on"):
        Environment(crash=crash).run(move.copy)
    move.copy(finish=True)
    move.check_goes_on()


@pytest.mark.usefixtures("at_once")
def test_a_log_that_lost_what_was_copied_is_told(move: Move) -> None:
    """A log that lost copied records raises: its ledger ends below the copy's position, or has grown again.

    Nothing is copied.
    """
    move.copy()
    with move.old.open() as log:
        end = log.ledger.end()
    move.old.cluster.lose_tail("old.ledger", 0, end - 1)
    with pytest.raises(BeyondEnd):
        move.copy()
    with move.old.open() as log:
        write_all(log.kafka, "old.ledger", 0, [b"junk"] * 3)
    with pytest.raises((AnchorMismatch, BeyondEnd)):
        move.copy()
    with move.new.open() as log:
        assert log.manifests.numbers() == [1]


def test_a_source_that_is_gone_costs_what_was_not_copied(move: Move) -> None:
    """A missing source costs its uncopied part: the copy opens as of the last copy, and only if it has any state."""
    with pytest.raises(NotFound):
        finish_copy("old", "new", move.new.where())
    with pytest.raises(Crash):
        Environment(crash=crash_at("after-list")).run(move.copy)
    with pytest.raises(NotFound, match="nothing was copied"):
        finish_copy("old", "new", move.new.where())
    move.copy()
    copied = dict(move.model)
    with move.old.open() as log:
        move.write(log)
    with pytest.raises(ConfigError, match="is a copy of old"):
        finish_copy("another", "new", move.new.where())
    done = finish_copy("old", "new", move.new.where(), settings=settings_for(move.scratch))
    assert (done.is_finished, done.changes) == (True, 0)
    move.model, move.number = copied, 3
    move.check_goes_on()


@pytest.mark.parametrize("copies", [0, 1])
def test_a_snapshot_is_copied_without_its_cluster(move: Move, copies: int) -> None:
    """The newest snapshot is copied without its cluster, with its progress."""
    with move.old.open() as log:
        move.round(log)
        kept, number = dict(move.model), move.number
        if copies:
            move.copy()
        move.write(log)
    move.old.cluster.is_down = True
    with open_snapshots("old", Where(None, move.old.store())) as alone:
        copy = partial(copy_log, alone, "new", is_alone=True, settings=settings_for(move.scratch))
        first = copy(move.new.where())
        assert (first.is_whole, first.changes > 0) == (not copies, not copies)
        move.check_closed()
        assert copy(move.new.where(), finish=True).is_finished
    move.model, move.number = kept, number
    move.check_goes_on()


def test_a_copy_does_not_go_back_to_a_snapshot(move: Move) -> None:
    """A copy does not go back to a snapshot: it retains the copied tail, which no snapshot has."""
    move.copy()
    with open_snapshots("old", Where(None, move.old.store())) as alone, pytest.raises(NotFound, match="has more"):
        copy_log(alone, "new", move.new.where(), is_alone=True, settings=settings_for(move.scratch))
    finish_copy("old", "new", move.new.where(), settings=settings_for(move.scratch))
    move.check_goes_on()


# ---- refusals


def test_a_copy_that_differs_is_not_put(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that differs is not put, whatever the reason: here a row less. Its uploads are deleted."""
    write = engine_module.write_tables

    def careless(tables: Iterable[pa.Table], output: TaskOutput, work: RoundWork) -> list[LocalRunRef]:
        return write((table.slice(1) for table in tables), output, work)

    monkeypatch.setattr(engine_module, "write_tables", careless)
    with pytest.raises(Corrupt, match="another state") as refused:
        move.copy(finish=True)
    assert refused.value.facts["expected_rows"] == len(move.model)
    with move.new.open() as log:
        assert (log.manifests.numbers(), list(log.store.list("runs/"))) == ([], [])
    monkeypatch.undo()
    move.copy(finish=True)
    move.check_goes_on()


@pytest.mark.usefixtures("busy_ledger")
def test_a_copy_that_has_what_its_log_gave_up_says_what_to_do(move: Move) -> None:
    """A copy that has forfeited commits of its log gets a hint of its own: copying again would never end otherwise."""
    with move.old.open() as log:
        move.write(log, "w")
    move.copy()
    with move.old.open() as log:
        ends = log.history.read().state.committed_positions
        lost = [LossRange(partition, end - 1, end) for partition, end in ends.items()]
        accept_data_loss(log, lost, reason="a disk died", operator="ann")
        move.write(log, "v")
    with pytest.raises(Corrupt, match="another state") as refused:
        move.copy()
    assert "whose loss was accepted" in refused.value.hint


def test_only_a_copy_is_copied_into(move: Move, tmp_path: Path) -> None:
    """Only a copy is copied into: no log of its own, no other log's copy, none that is finished or shaped otherwise."""
    with move.new.create() as log:
        with pytest.raises(AlreadyExists, match="no copy"):
            move.copy()
        Move(tmp_path).write(log)
        run_round(log, settings_for(tmp_path))
        with pytest.raises(AlreadyExists, match="no copy"):
            move.copy()
    Log.delete("new", move.new.where())
    move.copy()
    other = Move(tmp_path, twin_rig("old", cluster=MemoryCluster(cluster_id="elsewhere")), move.new)
    other.old.create().close()
    with pytest.raises(IdentityChanged, match="copy of another log"):
        other.copy()
    shaped = Move(tmp_path, twin_rig("old", cluster=MemoryCluster(cluster_id="shaped")), move.new)
    shaped.old.create(partitions=2).close()
    with pytest.raises(ConfigError, match="partitions"):
        shaped.copy()
    move.copy(finish=True)
    with pytest.raises(AlreadyExists, match="finished"):
        move.copy()
