"""A drill restores the state of a log in two ways, and reports a difference as damage."""

import logging
from pathlib import Path
from queue import Empty, Queue

import pytest

import statelog
from statelog.errors import Corrupt
from statelog.log import Log, accept_data_loss
from statelog.materializer.events import Event, EventKind
from statelog.materializer.round import run_round
from statelog.operate.drill import Drilled, drill, drilling
from statelog.recovery import Recovery, RecoverySettings, recover
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.ledger.records import LossRange
from statelog.testing import Twin
from tests.support.rigs.log import TwinLog, settings_for

KEYS = [b"k%d" % number for number in range(30)]


def drilled(twin: TwinLog, *, lease: bool = True) -> Drilled:
    """Run a drill of the log, as another process does."""
    with twin.open() as log:
        return twin.environment.run(drill, log, RecoverySettings(lease=lease))


def rolled_up(twin: TwinLog, tmp_path: Path, *, keep: int = 2) -> None:
    """Write another commit and run a round."""
    twin.write({key: b"%d" % len(twin.run_paths()) for key in KEYS} | {KEYS[0]: None})
    with twin.open() as log:
        twin.environment.run(run_round, log, settings_for(tmp_path, keep=keep))


def test_the_log_alone_is_the_other_way_while_it_reaches_back(tmp_path: Path) -> None:
    """After one round, the complete log is the second way. Both give the state, and lease and scratch are removed."""
    twin = TwinLog()
    rolled_up(twin, tmp_path)
    twin.write({KEYS[1]: b"tail"})
    done = drilled(twin)
    assert done.other is not None
    assert (done.restored.statistics.manifest, done.other.statistics.manifest) == (1, 0)
    assert done.restored.digest == done.other.digest
    assert done.restored.digest.rows == len(twin.model)
    assert done.restored.statistics.total_s > 0
    assert done.restored.name == "snapshot 1 and the tail behind it"
    assert done.other.name == "the log alone, from its first record"
    assert twin.disk.files("log/leases/") == []
    done.check()


def test_an_older_snapshot_is_the_other_way_afterwards(tmp_path: Path) -> None:
    """After truncation, the oldest retained snapshot is the second way. Without a lease nothing is written."""
    twin = TwinLog()
    for _ in range(4):
        rolled_up(twin, tmp_path, keep=3)
    before = twin.disk.files("")
    done = drilled(twin, lease=False)
    assert done.other is not None
    assert (done.restored.statistics.manifest, done.other.statistics.manifest) == (4, 2)
    assert not done.restored.statistics.has_lease
    assert twin.disk.files("") == before
    done.check()


def test_a_log_without_a_snapshot_has_one_way() -> None:
    """A log without a snapshot is restored from the log alone."""
    twin = TwinLog()
    twin.write({KEYS[0]: b"v"})
    done = drilled(twin)
    assert done.other is None
    assert "neither to an older snapshot" in done.why
    assert done.restored.digest.rows == 1
    done.check()


def test_a_difference_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference is damage that names both ways and their row counts."""
    twin = TwinLog()
    rolled_up(twin, tmp_path)

    sound = Recovery.digest

    def one_less(recovery: Recovery) -> StateDigest:
        digest = sound(recovery)
        return digest if recovery.plan.manifest is None else StateDigest(digest.rows - 1, digest.first, digest.second)

    monkeypatch.setattr(Recovery, "digest", one_less)
    done = drilled(twin)
    with pytest.raises(Corrupt, match="different ones") as caught:
        done.check()
    assert caught.value.facts["rows"] == len(twin.model) - 1
    assert caught.value.facts["compared_rows"] == len(twin.model)
    assert caught.value.hint


@pytest.mark.usefixtures("busy_ledger")
def test_what_was_given_up_is_not_compared(tmp_path: Path) -> None:
    """An accepted loss, which the snapshot has and the log has not, is not compared."""
    twin = TwinLog(partitions=1)
    rolled_up(twin, tmp_path)
    with twin.open() as log:
        accept_data_loss(log, [LossRange(0, 0, 1)], reason="a disk died", operator="ann")
    done = drilled(twin)
    assert done.other is None
    assert "a loss was accepted" in done.why


def test_a_digest_is_the_states(tmp_path: Path) -> None:
    """A digest depends on the state and not on the portions: it equals the table's, and differs for an earlier one."""
    twin = TwinLog()
    rolled_up(twin, tmp_path)
    with twin.open() as log:
        earlier = recover(log).digest()
        twin.write({KEYS[2]: b"more"})
    with twin.open() as log, recover(log) as recovery:
        table = recovery.to_arrow()
        assert recovery.digest() == StateDigest().of_more(table, log.value_schemas.newest()) != earlier


def _told(twin: Twin, *names: str) -> list[Event]:
    """Return the first event of each of these logs, with drills every few milliseconds."""
    told: Queue[Event] = Queue()
    with twin.environment(), drilling(lambda: names, lambda name: Log.open(name, twin.where()), 0.01, told.put):
        return [told.get(timeout=30) for _ in names]


def test_drills_come_by_themselves_and_are_told() -> None:
    """Logs are drilled in turn. A log's loss is its own event, and the next log is drilled all the same."""
    twin = Twin()
    with twin.environment():
        for name in ("damaged", "whole"):
            with statelog.open(name, twin.where(), create=True) as log, statelog.Writer(log, "w") as writer:
                writer.put(b"k", b"v")
                writer.commit()
                run_round(log)
    twin.disk.remove("damaged/descriptor.avro")
    damaged, whole = _told(twin, "whole", "damaged")
    assert (damaged.kind, damaged.log, damaged.level) == (EventKind.DRILL_FAILED, "damaged", logging.ERROR)
    assert damaged.error is not None
    assert damaged.facts["error"] == type(damaged.error).__name__
    assert (whole.kind, whole.log) == (EventKind.DRILLED, "whole")
    assert (whole.facts["rows"], whole.facts["compared_with"]) == (1, "the log alone, from its first record")
    assert whole.text.startswith("drill: 1 rows restored in ")


def test_a_defect_of_one_drill_is_no_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of a drill is an error event of its log, and the next drill still runs."""
    twin = Twin()
    with twin.environment():
        statelog.open("whole", twin.where(), create=True).close()

    def defect(*_: object) -> Drilled:
        raise ZeroDivisionError("by zero")

    with monkeypatch.context() as patch:
        patch.setattr("statelog.operate.drill.drill", defect)
        told = _told(twin, "whole", "whole")
    assert [(one.kind, one.facts["message"]) for one in told] == 2 * [
        (EventKind.DRILL_FAILED, "a defect: ZeroDivisionError: by zero")
    ]
    (whole,) = _told(twin, "whole")
    assert whole.kind is EventKind.DRILLED


def test_no_drill_begins_behind_the_end() -> None:
    """No drill begins, or is reported, after the end: the reader of events may be gone."""
    told: Queue[Event] = Queue()
    twin = Twin()
    with twin.environment(), drilling(lambda: ["absent"], lambda name: Log.open(name, twin.where()), 0.2, told.put):
        pass
    with pytest.raises(Empty):
        told.get(timeout=0.5)
