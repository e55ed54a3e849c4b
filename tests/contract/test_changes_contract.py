"""The promises of committed changes between two states, on the in-memory twins and on a real broker alike."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from statelog.environment import Environment
from statelog.errors import IncompatibleSchema, Misuse, NotFound, OffsetGone
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.reading.hold import Hold, Terms
from statelog.recovery import AtPosition, AtTime, plan_changes, read_changes, recover, split_changes
from statelog.testing.cluster import MemoryCluster
from tests.support.rigs.log import LogRig, TwinLog, real_rig, settings_for, twin_rig
from tests.support.services.broker import Broker

_FIRST = {"type": "record", "name": "Plane", "fields": [{"name": "n", "type": "int"}]}
_SECOND = {
    "type": "record",
    "name": "Plane",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string", "default": "-"}],
}


class _Place(NamedTuple):
    """A place for logs, the brokers' time in seconds, and a way to let some pass."""

    rig: LogRig
    now_s: Callable[[], float]
    wait: Callable[[], None]


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> Iterator[_Place]:
    """Yield a log's two places, with times, in memory or real."""
    if request.param == "real":
        broker = cast("Broker", request.getfixturevalue("broker"))
        yield _Place(real_rig(log_name, broker.bootstrap, tmp_path / "root"), time.time, lambda: time.sleep(0.02))
        return
    now = [1_000.0]
    rig = twin_rig(log_name, cluster=MemoryCluster(clock=lambda: now[0]))
    yield _Place(rig, lambda: now[0], lambda: now.append(now.pop() + 1.0))


def _rows(log: Log, *bounds: Any, **options: Any) -> list[tuple[Any, ...]]:
    """Return key, op, value, writer and checkpoint of the changes, by position and key."""
    found: list[tuple[Any, ...]] = []
    for batch in read_changes(log, plan_changes(log, *bounds, **options)):
        names = ("position", "key", "op", "value", "writer", "checkpoint")
        found += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return [row[1:] for row in sorted(found, key=lambda row: row[:2])]


def test_changes_between_times(place: _Place) -> None:
    """A range between two times has the commits from the first, inclusive, to the second, exclusive.

    Each commit carries its broker's time. Times before and behind all records are the ends of the log. A state at a
    time has the commits before it.
    """
    with place.rig.create() as log:
        times: list[int] = []
        with Writer(log, "w") as writer:
            for number in range(6):
                place.wait()
                times.append(int(place.now_s() * 1000))
                place.wait()
                writer.put(b"key", b"%d" % number)
                writer.commit(checkpoint_id=number + 1)
        values = [row[2] for row in _rows(log, AtTime(times[1]), AtTime(times[4]))]
        assert values == [b"1", b"2", b"3"]
        assert len(_rows(log, AtTime(0), AtTime(times[5] + 3_600_000))) == 6
        assert _rows(log, AtTime(times[5] + 3_600_000)) == []
        with pytest.raises(Misuse, match="ends before it begins"):
            plan_changes(log, AtTime(times[4]), AtTime(times[1]))
        states = [recover(log, at=AtTime(time)).to_dict() for time in (0, times[0], times[3], times[5] + 3_600_000)]
        assert states == [{}, {}, {b"key": b"2"}, {b"key": b"5"}]
        plan = plan_changes(log)
        stamped = [facts.timestamp_ms for facts in plan.commits]
        assert all(before <= stamp for before, stamp in zip(times, stamped, strict=True))
        [batch] = read_changes(log, plan)
        expected = [datetime.fromtimestamp(stamp / 1000, UTC) for stamp in stamped]
        assert batch.column("timestamp").to_pylist() == expected


def test_a_time_among_truncated_changes_is_told(place: _Place, tmp_path: Path) -> None:
    """A start or an end that may lie below the log's start is NotFound with the way out, and is never moved up.

    This holds also if a snapshot of the truncated changes is a little older: clocks differ.
    """
    times: list[int] = []
    with place.rig.create() as log, Writer(log, "w") as writer:
        for number in range(3):
            place.wait()
            times.append(int(place.now_s() * 1000))
            place.wait()
            writer.put(b"key", b"%d" % number)
            writer.commit()
            Environment(wall_clock=place.now_s).run(run_round, log, settings_for(tmp_path))
        assert [row[2] for row in _rows(log)] == [b"2"]
        for bounds in ((AtTime(times[0]),), (None, AtTime(times[1])), (AtTime(times[2]),)):
            with pytest.raises(NotFound, match="does not hold time") as caught:
                plan_changes(log, *bounds)
            assert "earliest" in str(caught.value)
        with pytest.raises(NotFound, match="does not hold the state at time"):
            recover(log, at=AtTime(times[0]))


def test_a_time_since_a_snapshot_is_held(tmp_path: Path) -> None:
    """A time is complete if a snapshot that existed well before it holds all truncated changes."""
    twin = TwinLog()
    for number in range(3):
        twin.now_s += 3600
        twin.write({b"key": b"%d" % number})
        twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    log = twin.open()
    asked_s = twin.now_s - 1800
    assert [row[2] for row in _rows(log, AtTime(int(asked_s * 1000)))] == [b"2"]
    with pytest.raises(NotFound):
        plan_changes(log, AtTime(int((asked_s - 3600) * 1000)))


def test_values_of_a_range_have_one_schema(place: _Place) -> None:
    """Changes written with two schemas come in the newest, deletes with a null.

    A reader may ask for another schema that is not older than some value.
    """
    with place.rig.create(value_schema=json.dumps(_FIRST)) as log:
        with Writer(log, "w") as writer:
            writer.put(b"a", {"n": 1})
            writer.commit()
            middle = writer.position
        log.evolve_value_schema(json.dumps(_SECOND))
        with Writer(log, "w") as writer:
            writer.put(b"b", {"n": 2, "s": "x"})
            writer.delete(b"a")
            writer.commit()
        assert _rows(log) == [
            (b"a", 0, {"n": 1, "s": "-"}, "w", 1),
            (b"a", 1, None, "w", 2),
            (b"b", 0, {"n": 2, "s": "x"}, "w", 2),
        ]
        assert _rows(log, None, AtPosition(middle), value_schema_id=1) == [(b"a", 0, {"n": 1}, "w", 1)]
        with pytest.raises(IncompatibleSchema):
            _rows(log, value_schema_id=1)


def test_a_held_plan_outlives_rounds_and_one_that_is_not_says_so(place: _Place, tmp_path: Path) -> None:
    """Rounds that truncate the log leave the range of a lease. After its release, tasks raise OffsetGone.

    Planning then names the range that the log holds. A plan of many commits is few tasks.
    """
    with place.rig.create() as log, Writer(log, "w") as writer:
        for number in range(5):
            for key in range(50):
                writer.put(b"key-%d" % key, b"%d" % number)
            writer.commit()
        plan = plan_changes(log)
        assert (len(plan.commits), plan.changes, len(split_changes(plan, 8))) == (5, 250, 1)
        assert len(split_changes(plan, 3, least_bytes=1)) == 3
        lease = Hold(log.store, Terms("test", 600.0)).on(log, plan)
        for number in range(4):
            place.wait()
            writer.put(b"more", b"%d" % number)
            writer.commit()
            run_round(log, settings_for(tmp_path))
        assert (
            sum(batch.num_rows for part in split_changes(plan, 9, least_bytes=1) for batch in read_changes(log, part))
            == 250
        )
        lease.close()
        assert list_leases(log.store) == []
        writer.put(b"more", b"last")
        writer.commit()
        run_round(log, settings_for(tmp_path))
        with pytest.raises(OffsetGone):
            Hold(log.store, Terms("test", 600.0)).on(log, plan)
        assert list_leases(log.store) == []
        with pytest.raises(OffsetGone):
            list(read_changes(log, plan))
        with pytest.raises(NotFound, match="does not hold") as caught:
            plan_changes(log, AtPosition(0))
        oldest = caught.value.facts["oldest_position"]
        assert isinstance(oldest, int)
        assert plan_changes(log).start_position == oldest > 0
        assert plan_changes(log, AtPosition(oldest)).changes == plan_changes(log).changes > 0


def test_a_log_without_times_says_so(log_name: str) -> None:
    """Where the ledger's records carry no broker time, a range of times is refused, and timestamps are null."""
    rig = twin_rig(log_name)
    with rig.create() as log, Writer(log, "w") as writer:
        writer.put(b"key", b"value")
        writer.commit()
        with pytest.raises(Misuse, match="no times"):
            plan_changes(log, AtTime(5))
        [batch] = read_changes(log, plan_changes(log))
        assert batch.column("timestamp").null_count == 1
