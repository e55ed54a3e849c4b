"""A task that reads a slice of a state, on the twins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import CorruptRun
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading.plan import part_of
from statelog.recovery.recover import Recovery, recover
from statelog.spark import parts, source
from statelog.spark.parts import read_state, slices, state_parts
from statelog.store import run_reader
from statelog.store.local import LocalStore
from statelog.store.merge import Lane
from tests.support.rigs.history import HistoryRig, history_rig
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.told import lines

_SEEN = '{"type": "record", "name": "Visit", "fields": [{%s, "type": "long", "default": 0}]}'


def _read(rig: HistoryRig, plan: Any, count: int) -> dict[Any, Any]:
    state: dict[Any, Any] = {}
    for groups in slices(range(8), count):
        rows: list[tuple[int, bytes]] = []
        for table in read_state(rig.log, part_of(plan, frozenset(groups), rig.log.descriptor)):
            rows += zip(table.column("key_group").to_pylist(), table.column("key").to_pylist(), strict=True)
            state.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
        assert rows == sorted(set(rows)), "in order, and each key once"
    return state


@pytest.mark.parametrize("count", [1, 3, 8])
def test_slices_are_read_from_the_plan_alone(count: int) -> None:
    """Slices are read from the plan alone, without listing, folding or leases, and add up to the state.

    A damaged run is replaced by the log without a lost or repeated row, as long as the log reaches back. Otherwise the
    task raises its error.
    """
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(90)])
        rig.snapshot()
        rig.commit(writer, 2, [(b"key-%d" % i, b"2" if i % 2 else None) for i in range(40)])
        rig.snapshot(merge=True)
        rig.commit(writer, 3, [(b"key-%d" % i, b"3") for i in range(20)])
    plan = recover(rig.log).plan
    expected = rig.state_at(rig.end())
    assert _read(rig, plan, count) == expected
    newest = rig.manifests[-1].runs[0].path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_reader, "PIECE_BYTES", 1)  # Some row groups come out before the damaged one.
        data = bytearray(rig.log.store.read(newest))
        span = plan.runs[-1].run.index.row_groups[len(plan.runs[-1].run.index.row_groups) // 2]
        data[span.offset + 2] ^= 1
        rig.log.store.put(newest, bytes(data))
        with lines() as told:
            assert _read(rig, plan, count) == expected
            rig.truncate(rig.manifests[-1])
            with pytest.raises(CorruptRun):
                _read(rig, plan, count)
        assert all("snapshot 2 is damaged" in line for line in told)


def test_a_small_state_has_few_tasks() -> None:
    """A state has one task for a number of bytes, within one and the number of partitions, unless set.

    Tasks cover the wanted key groups.
    """
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1" * 1000) for i in range(90)])
    plan, descriptor = recover(rig.log).plan, rig.log.descriptor
    groups = range(descriptor.key_groups)

    def counted(task_bytes: int, minimum: int | None = None) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "_TASK_BYTES", task_bytes)
            found = state_parts(plan, groups, descriptor, minimum)
        assert sorted(group for part in found for group in part.plan.key_groups or ()) == list(groups)
        return len(found)

    assert counted(plan.size_bytes * 3) == counted(plan.size_bytes + 1) == 1
    assert counted(plan.size_bytes * 3 // 5) == counted(plan.size_bytes // 2) == 2
    assert counted(1) == descriptor.partitions
    assert counted(plan.size_bytes + 1, minimum=3) == 3
    assert state_parts(plan, [], descriptor, None) == []


def test_a_load_has_the_columns_of_all_that_its_position_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load has the columns of the newest schema at its position.

    A field renamed during planning would otherwise get its default.
    """
    rig = twin_rig("log")
    log = rig.create(value_schema=_SEEN % '"name": "seen"')

    def after_an_evolution(*given: Any, **more: Any) -> Recovery:
        with rig.open() as other:
            other.evolve_value_schema(_SEEN % '"name": "visits", "aliases": ["seen"]')
            with Writer(other, "w") as writer:
                writer.put(b"k", {"visits": 7})
                writer.commit()
        return recover(*given, **more)

    def opened(*_: object) -> Log:
        return log

    monkeypatch.setattr(source, "cached_log", opened)
    monkeypatch.setattr(source, "recover", after_an_evolution)
    options = {"log": "log", "root": "r", "kafka.bootstrap.servers": "b"}
    columns, loaded = source.load(options)
    scan: Any = source.reader(options, columns, loaded)
    rows = [row for part in scan.partitions() for batch in scan.read(part) for row in batch.to_pylist()]
    assert rows == [{"key": b"k", "visits": 7}]


@pytest.mark.parametrize("is_local", [True, False])
def test_what_lies_here_is_decoded_in_the_task_s_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    """A local file is decoded in the task's own thread, since a second one costs CPU. Other stores are read ahead."""
    begun: list[object] = []
    make = Lane.__init__

    def watched(lane: Lane, parts: Any, opening: Any, start: Any, *given: Any, **more: Any) -> None:
        begun.append(start)
        make(lane, parts, opening, start, *given, **more)

    monkeypatch.setattr(Lane, "__init__", watched)
    rig = twin_rig("log")
    if is_local:
        rig = replace(rig, store=lambda: LocalStore(tmp_path, "log"))
    log = rig.create()
    with Writer(log, "w") as writer:
        for number in range(90):
            writer.put(b"key-%d" % number, b"1")
        writer.commit()
    run_round(log, settings_for(tmp_path))
    begun.clear()
    plan = recover(log).plan
    assert sum(table.num_rows for table in read_state(log, plan)) == 90
    assert [start is None for start in begun] == [is_local]
