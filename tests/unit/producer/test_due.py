"""Dues on their way in: `put`, `append`, `append_batch`, and logs with a ttl, down to what replay gives."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, InvalidChange, ValueTooLarge
from statelog.history.following import LedgerRate
from statelog.kafka.port import Reader
from statelog.log import Log, LogOptions
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer import Coordinator, TaskWriter, Writer, WriterSettings
from statelog.producer.settings import WriterTuning
from statelog.reading import planner
from statelog.reading.local_copy import LocalCopyReader
from statelog.reading.plan import AtPosition
from statelog.reading.replay import replay
from statelog.recovery import recover
from statelog.schemas.changes.due import DUE, has_due
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from tests.support.rigs.log import TwinRig, settings_for, tail_of, twin_rig

NESTED = """{"type": "record", "name": "V", "fields": [{"name": "s", "type": "string"}]}"""
NEWER = """{"type": "record", "name": "V", "fields": [{"name": "s", "type": "string"},
    {"name": "n", "type": "int", "default": 7}]}"""
WITH_DUE = """{"type": "record", "name": "V", "fields": [{"name": "s", "type": "string"},
    {"name": "due", "type": ["null", "long"], "default": null}]}"""
NOW_S = 1_000_000.0
Found = dict[Any, tuple[Any, int | None]]


def times(*due_ms: int | None) -> pa.Array:
    """Return a column of dues."""
    return pa.array(due_ms, DUE.type)


def read(log: Log) -> list[pa.RecordBatch]:
    """Return all committed changes as replay gives them."""
    return tail_of(log, None)[1]


def newest(log: Log) -> Found:
    """Return the newest value and due of each key; None, None for a deleted one."""
    found: Found = {}
    for batch in read(log):
        dues = batch.column(4).cast(pa.int64()).to_pylist() if has_due(batch) else [None] * batch.num_rows
        rows = zip(batch.column(2).to_pylist(), batch.column(3).to_pylist(), dues, strict=True)
        found |= {key: (value, due) for key, value, due in rows}
    return found


def written(rig: TwinRig, write: Callable[[Writer], None], *, is_carried: bool = True) -> Found:
    """Write and commit; return what replay gives."""
    with rig.open() as log:
        with Writer(log, "w") as writer, patch.object(LedgerRate, "is_low", is_carried):
            write(writer)
            writer.commit()
        return newest(log)


def no_kafka() -> Reader:
    """Return no reader: a copy that is whole needs none."""
    pytest.fail("the copy is not whole")


def versions(rig: TwinRig, log: Log) -> set[int]:
    """Return the versions of the chunks in the data topic."""
    found = (rig.cluster.records(log.data_topic, one) for one in range(log.descriptor.partitions))
    return {record.value[4] for records in found for record in records if record.value[:4] == b"SLCK"}


@pytest.mark.parametrize("is_carried", [True, False])
@pytest.mark.parametrize("roll_rows", [2, 3, 20_000])
def test_puts_with_and_without(is_carried: bool, roll_rows: int) -> None:
    """A put's due comes out with it; a put without one, before or after, has none, and clears an earlier one."""
    rig = twin_rig("log")
    rig.create().close()
    with rig.open() as log:
        settings = WriterSettings(_tuning=WriterTuning(roll_rows=roll_rows))
        with Writer(log, "w", settings=settings) as writer, patch.object(LedgerRate, "is_low", is_carried):
            writer.put(b"a", b"1")
            writer.put(b"b", b"2", 7.0)
            writer.put(b"c", b"3", due=datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC))
            writer.put(b"d", b"4", 5)
            writer.put(b"d", b"5")
            writer.delete(b"e")
            writer.put(b"f", b"6", 5)
            writer.delete(b"f")
            writer.commit()
        assert newest(log) == {
            b"a": (b"1", None), b"b": (b"2", 7000), b"c": (b"3", 9000), b"d": (b"5", None), b"e": (None, None),
            b"f": (None, None),
        }  # fmt: skip


def test_changes_without_dues_have_no_column() -> None:
    """Where no change has a due nothing has the column, and chunks stay at version 2; with one, only its partition."""
    rig = twin_rig("log")
    with rig.create() as log, Writer(log, "w") as writer, patch.object(LedgerRate, "is_low", False):
        for key in range(50):
            writer.put(b"%d" % key, b"v")
        writer.commit()
        assert not any(has_due(batch) for batch in read(log))
        assert versions(rig, log) == {2}
        for key in range(50):
            writer.put(b"%d" % key, b"v", 5.0 if key == 7 else None)
        writer.commit()
        assert sum(has_due(batch) for batch in read(log)) == 1
        assert versions(rig, log) == {2, 3}


@pytest.mark.parametrize("due", [float("nan"), -1, "soon", True, datetime(2030, 1, 1)])  # noqa: DTZ001 - no zone
def test_a_due_that_is_no_time_is_refused(due: Any) -> None:
    """A due that is no time is refused at the put, and the next put does not get it."""
    rig = twin_rig("log")
    rig.create().close()

    def write(writer: Writer) -> None:
        with pytest.raises(InvalidChange, match="due"):
            writer.put(b"a", b"1", due)
        writer.put(b"b", b"2")

    assert written(rig, write) == {b"b": (b"2", None)}


def test_a_refused_put_leaves_the_next_one_no_due() -> None:
    """A due of a put that is refused for its key, its value or its size is not that of the next one."""
    rig = twin_rig("log")
    rig.create().close()

    def write(writer: Writer) -> None:
        wrong: list[tuple[Any, Any]] = [(1, b"1"), (b"a", "text"), (b"a", bytes(16 << 20))]
        for key, value in wrong:
            with pytest.raises((InvalidChange, ValueTooLarge)):
                writer.put(key, value, 5.0)
            writer.put(b"b", b"2")
        writer.put(b"c", b"3", 6.0)

    assert written(rig, write) == {b"b": (b"2", None), b"c": (b"3", 6000)}


def test_a_large_put_keeps_its_due() -> None:
    """A put that goes past the lists keeps its due and its place."""
    rig = twin_rig("log")
    rig.create().close()

    def write(writer: Writer) -> None:
        writer.put(b"a", b"1", 5.0)
        writer.put(b"a", bytes(9 << 20), 6.0)
        writer.put(b"b", bytes(9 << 20))
        writer.put(b"c", b"3")

    found = written(rig, write)
    assert {key: due for key, (_, due) in found.items()} == {b"a": 6000, b"b": None, b"c": None}


@pytest.mark.parametrize("excess", [0, 1])
def test_the_largest_change_with_a_due(excess: int) -> None:
    """A change with a due may be as large as one without, less the bytes of the due; above it is refused."""
    rig = twin_rig("log")
    with rig.create() as log, Writer(log, "w") as writer:
        value = bytes((15 << 20) - 11 - 8 - 1 + excess)
        if excess:
            with pytest.raises(ValueTooLarge):
                writer.put(b"k", value, 5.0)
            return
        writer.put(b"k", value, 5.0)
        writer.commit()
        assert newest(log)[b"k"][1] == 5000


def test_append_names_the_key_group() -> None:
    """Where the caller names the key group a change has its due, too; a delete is refused with one."""
    rig = twin_rig("log")
    rig.create(hash_rule=HashRule.CALLER).close()

    def write(writer: Writer) -> None:
        writer.append(3, b"a", b"1", 5.0)
        writer.append(4, b"b", b"2")
        with pytest.raises(InvalidChange, match="delete has no due"):
            writer.append(4, b"c", None, 5.0)
        with pytest.raises(InvalidChange, match="is refused"):
            writer.append(4, b"c", b"3", float("inf"))
        writer.append(5, b"d", b"4", due=6)
        writer.append(6, b"e", None)

    assert written(rig, write) == {
        b"a": (b"1", 5000), b"b": (b"2", None), b"d": (b"4", 6000), b"e": (None, None)
    }  # fmt: skip


# ---- batches


def test_a_batch_with_dues() -> None:
    """A column `due` of any unit is rounded up; null is none; a delete has none, whatever stands there."""
    rig = twin_rig("log")
    rig.create().close()
    due = pa.array([1001, None, 5], pa.timestamp("us", tz="Asia/Tokyo"))
    table = pa.table({"key": [b"a", b"b", b"c"], "value": [b"1", b"2", b"3"], "op": [0, 0, 1], "due": due})
    found = written(rig, lambda writer: writer.append_batch(table))
    assert found == {b"a": (b"1", 2), b"b": (b"2", None), b"c": (None, None)}


@pytest.mark.parametrize("kind", ["list", "batch"])
def test_batches_and_puts_with_and_without(kind: str) -> None:
    """Puts and batches with and without dues keep their order and their dues, whichever comes first."""
    rig = twin_rig("log")
    rig.create().close()

    def write(writer: Writer) -> None:
        plain = pa.table({"key": [b"a", b"b"], "value": [b"1", b"1"]})
        timed = plain.append_column("due", times(5, None))
        for table in (plain, timed) if kind == "list" else (timed, plain):
            writer.append_batch(table)
        writer.put(b"b", b"2", 9)

    due = 5 if kind == "list" else None
    assert written(rig, write) == {b"a": (b"1", due), b"b": (b"2", 9000)}


def test_the_memory_of_a_batch_is_not_held() -> None:
    """A batch's dues are those at the call, whatever its memory holds later."""
    rig = twin_rig("log")
    rig.create().close()
    memory = bytearray((5).to_bytes(8, "little"))
    due = pa.Array.from_buffers(DUE.type, 1, [None, pa.py_buffer(memory)])

    def write(writer: Writer) -> None:
        writer.append_batch(pa.table({"key": [b"a"], "value": [b"1"], "due": due}))
        memory[:] = bytes(8)

    assert written(rig, write) == {b"a": (b"1", 5)}


@pytest.mark.parametrize("due", [pa.array([1]), pa.array([1.5]), pa.array([1], pa.timestamp("ms"))], ids=str)
def test_a_batch_with_a_column_of_another_type(due: pa.Array) -> None:
    """Numbers and times without a zone are refused by name, and nothing is appended."""
    rig = twin_rig("log")
    with rig.create() as log, Writer(log, "w") as writer:
        with pytest.raises(InvalidChange, match="column `due`"):
            writer.append_batch(pa.table({"key": [b"a"], "value": [b"1"], "due": due}))
        assert writer.statistics().changes == 0


@pytest.mark.parametrize("key_type", list(KeyType))
def test_typed_values_and_other_keys(key_type: KeyType) -> None:
    """Typed values under keys of each type have dues, from puts and from batches."""
    named: dict[KeyType, list[Any]] = {KeyType.BYTES: [b"a", b"b"], KeyType.STRING: ["a", "b"], KeyType.LONG: [1, 2]}
    keys = named[key_type]
    rig = twin_rig("log")
    rig.create(key_type=key_type, value_schema=NESTED).close()

    def write(writer: Writer) -> None:
        writer.put(keys[0], {"s": "x"}, 5)
        writer.append_batch(pa.table({"key": keys[1:], "s": ["y"], "due": times(6)}))

    assert written(rig, write) == {keys[0]: ({"s": "x"}, 5000), keys[1]: ({"s": "y"}, 6)}


def test_a_field_of_that_name() -> None:
    """In a log whose values have a field `due`, the column is that field; beside a struct `value` it has the dues."""
    rig = twin_rig("log")
    rig.create(value_schema=WITH_DUE).close()

    def write(writer: Writer) -> None:
        writer.append_batch(pa.table({"key": [b"a"], "s": ["x"], "due": [3]}))
        whole = pa.array([{"s": "y", "due": 4}])
        writer.append_batch(pa.table({"key": [b"b"], "value": whole, "due": times(7)}))
        writer.put(b"c", {"s": "z", "due": 5}, 8)

    assert written(rig, write) == {
        b"a": ({"s": "x", "due": 3}, None), b"b": ({"s": "y", "due": 4}, 7), b"c": ({"s": "z", "due": 5}, 8000)
    }  # fmt: skip


# ---- other ways


def test_a_tasks_changes_have_dues() -> None:
    """A task writer takes dues as a writer does."""
    rig = twin_rig("log")
    with rig.create() as log, Coordinator(log, "job") as coordinator, closing(log.kafka.producer()) as producer:
        with TaskWriter(producer, coordinator.task(), slot=0) as task:
            task.put(b"a", b"1", 5)
            task.append_batch(pa.table({"key": [b"b"], "value": [b"2"], "due": times(6)}))
            handle = task.finish()
        coordinator.commit([handle])
        assert newest(log) == {b"a": (b"1", 5000), b"b": (b"2", 6)}


def test_local_copies_have_dues(tmp_path: Path) -> None:
    """A local copy gives the changes with their dues."""
    rig = twin_rig("log")
    with rig.create() as log, patch.object(LedgerRate, "is_low", False):
        with Writer(log, "w", settings=WriterSettings(local_copies=tmp_path)) as writer:
            writer.put(b"a", b"1", 5)
            writer.commit()
        plan = planner.plan_changes(log, None, AtPosition(log.ledger.end()))
        with closing(LocalCopyReader(tmp_path, log.name, plan.replay, no_kafka)) as reading:
            (chunk,) = replay(log, reading, plan.replay, stall_timeout_s=1.0)
        assert chunk.changes.column("due").cast(pa.int64()).to_pylist() == [5000]


# ---- a ttl


@pytest.mark.parametrize("is_carried", [True, False])
def test_a_log_with_a_ttl(is_carried: bool) -> None:
    """In a log with a ttl, a put without a due has now and the ttl; with one, that counts; a delete has none."""
    rig, now = twin_rig("log"), [NOW_S]
    rig.create(ttl_s=600).close()

    def write(writer: Writer) -> None:
        writer.put(b"a", b"1")
        now[0] += 10
        writer.put(b"b", b"2")
        writer.put(b"c", b"3", 5)
        writer.delete(b"d")
        writer.append_batch(pa.table({"key": [b"e", b"f"], "value": [b"4", b"5"], "due": times(None, 7)}))
        writer.append_batch(pa.table({"key": [b"g", b"h"], "value": [b"6", None]}))

    environment = Environment(wall_clock=lambda: now[0])
    found = environment.run(written, rig, write, is_carried=is_carried)
    first = int(NOW_S + 600) * 1000
    assert found == {
        b"a": (b"1", first), b"b": (b"2", first + 10_000), b"c": (b"3", 5000), b"d": (None, None),
        b"e": (b"4", first + 10_000), b"f": (b"5", 7), b"g": (b"6", first + 10_000), b"h": (None, None),
    }  # fmt: skip


@pytest.mark.parametrize("options", [{"hash_rule": HashRule.CALLER}, {"value_schema": NESTED}, {"value_type": "json"}])
def test_a_ttl_holds_for_every_way_in(options: dict[str, Any]) -> None:
    """A ttl holds where callers name key groups, for typed values, and for JSON."""
    rig = twin_rig("log")
    rig.create(ttl_s=0.5, **options).close()
    value: Any = b"1" if "hash_rule" in options else {"s": "x"}

    def write(writer: Writer) -> None:
        if "hash_rule" in options:
            writer.append(3, b"a", value)
        else:
            writer.put(b"a", value)

    found = Environment(wall_clock=lambda: NOW_S).run(written, rig, write)
    assert found[b"a"][1] == int(NOW_S * 1000) + 500


def test_an_existing_log_agrees_with_its_ttl() -> None:
    """An existing log must have the ttl that is asked for; if none is, any is fine."""
    rig = twin_rig("log")
    rig.create(ttl_s=600).close()
    with rig.open() as log:
        assert log.descriptor.ttl_s == 600
        log.check_made_with(LogOptions())
        log.check_made_with(LogOptions(ttl_s=600))
        with pytest.raises(ConfigError, match=r"ttl_s is 600.0 and not 5"):
            log.check_made_with(LogOptions(ttl_s=5))


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 1e12, "600", True])
def test_a_ttl_that_no_log_has(ttl_s: Any) -> None:
    """A ttl that is not a positive number of at most a hundred years is refused before anything is made."""
    rig = twin_rig("log")
    with pytest.raises(ConfigError, match="ttl_s is"):
        rig.create(ttl_s=ttl_s)


@pytest.mark.parametrize("in_snapshot", [False, True])
def test_values_of_an_older_schema_keep_their_dues(tmp_path: Path, in_snapshot: bool) -> None:
    """Changes that are converted to a newer value schema keep their dues, from the tail and from a snapshot."""
    rig = twin_rig("log")
    with rig.create(value_schema=NESTED) as log:
        with Writer(log, "w") as writer:
            writer.put(b"a", {"s": "x"}, 5)
            writer.put(b"b", {"s": "y"})
            writer.commit()
        if in_snapshot:
            assert isinstance(run_round(log, settings_for(tmp_path)), CompletedRound)
        log.evolve_value_schema(NEWER)
        with Writer(log, "w") as writer:
            writer.put(b"c", {"s": "z", "n": 2}, 6)
            writer.commit()
        with recover(log) as recovery:
            found = recovery.to_arrow(due=True)
    rows = zip(*(found.column(name).to_pylist() for name in ("key", "value", "due")), strict=True)
    dues = {key: (value["n"], due and due.timestamp()) for key, value, due in rows}
    assert dues == {b"a": (7, 5.0), b"b": (7, None), b"c": (2, 6.0)}
