"""Recovery on the twins: kinds of keys and values, targets, facts, and refusals."""

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, KeyGroupMismatch, Misuse, NoSuchYear, NotFound, StorageFull
from statelog.producer.writer import Writer
from statelog.reading.plan import AtCheckpoint, AtPosition, AtTime
from statelog.recovery.changes import read_changes, split_changes
from statelog.recovery.plan_reader import Phase
from statelog.recovery.progress import Progress
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.store import run_reader
from tests.support.faults.spill import Disks
from tests.support.rigs.history import HistoryRig, history_rig
from tests.support.samples.avro_fields import MICROS, avsc_of, field

_PATIENCE_S = 30.0

_V1 = '{"type":"record","name":"V","fields":[{"name":"n","type":"long"}]}'
_V2 = """{"type":"record","name":"V","fields":[{"name":"n","type":"long"},
       {"name":"s","type":["null","string"],"default":null},{"name":"d","type":"int","default":7}]}"""


def _filled(*, snapshot: bool = True) -> HistoryRig:
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"one") for i in range(50)], {"offset": "1"})
        if snapshot:
            rig.snapshot()
        writer.append_meta("codec", b"json")
        rig.commit(writer, 2, [(b"key-%d" % i, None if i % 2 else b"two") for i in range(25)], {"offset": "2"})
    return rig


def test_an_empty_log_has_an_empty_state() -> None:
    """A log without a commit recovers to nothing, in every target and with its columns."""
    log = history_rig().log
    recovery = recover(log)
    assert recovery.to_dict() == {}
    assert (recovery.position, recovery.commits, recovery.meta) == (1, {}, {})  # Behind the mark.
    assert recovery.to_arrow().schema.names == ["key_group", "key", "value"]
    assert recovery.to_arrow(ordered=True).num_rows == 0


def test_a_time_that_python_lacks_is_told() -> None:
    """A time outside of Python's range is available as a column, and is a typed error as a dict."""
    far = pa.array([1 << 60]).cast(pa.timestamp("us", "UTC"))
    rig = history_rig(value_schema=avsc_of(field(MICROS, "at")))
    with Writer(rig.log, "w") as writer:
        writer.append_batch(pa.table({"key": pa.array([b"a"]), "at": far}))
        writer.commit()
    assert recover(rig.log).to_arrow().num_rows == 1
    with pytest.raises(NoSuchYear, match="whose year Python does not have") as refused:
        recover(rig.log).to_dict()
    assert refused.value.facts == {"key": "b'a'", "field": "value.at"}
    assert "to_arrow" in refused.value.hint


def test_commits_and_meta_are_those_of_the_position() -> None:
    """Last commits with metadata, and meta records, are those of the recovered position."""
    rig = _filled()
    newest, older = recover(rig.log), recover(rig.log, at=AtCheckpoint("w", 1))
    last, before = newest.last_commit("w"), older.last_commit("w")
    assert last is not None
    assert before is not None
    assert (last.checkpoint.id, last.metadata) == (2, {"offset": "2"})
    assert (before.checkpoint.id, before.metadata) == (1, {"offset": "1"})
    assert newest.commits == {"w": last}
    assert (newest.meta, older.meta) == ({("w", "codec"): b"json"}, {})
    assert newest.last_commit("nobody") is None
    newest.close()
    older.close()


def test_a_final_commit_can_be_asked_for() -> None:
    """The final commit of a writer's ended sequence is found by the writer's name."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.append(writer, [(b"a", b"1")])
        position = writer.commit(checkpoint_id=9, final=True).offset + 1
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"2")])
    recovery = recover(rig.log, at=AtCheckpoint("w", 9))
    assert (recovery.position, recovery.to_dict()) == (position, {b"a": b"1"})


def test_a_quiet_commit_can_be_asked_for() -> None:
    """A checkpoint that committed progress without changes has a position, too."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        first = rig.commit(writer, 1, [(b"a", b"1")])
        writer.commit({"offset": "5"}, checkpoint_id=2)
    assert recover(rig.log, at=AtCheckpoint("w", 2)).position == first + 1


def test_what_is_not_there_is_not_found() -> None:
    """An unknown writer, an unknown checkpoint or a position above the end is NotFound and names what exists."""
    rig = _filled()
    for at in (AtCheckpoint("x", 1), AtCheckpoint("w", 3), AtPosition(rig.end() + 1)):
        with pytest.raises(NotFound) as caught:
            recover(rig.log, at=at)
        assert (caught.value.facts["oldest_position"], caught.value.facts["newest_position"]) == (0, rig.end())


def test_misuse_is_refused() -> None:
    """Key groups that the log lacks, negative positions, bad settings, and statistics before a target are refused."""
    rig = _filled()
    with pytest.raises(KeyGroupMismatch):
        recover(rig.log, key_groups=[8])
    with pytest.raises(Misuse):
        AtPosition(-1)
    no_time: Any = math.nan
    with pytest.raises(Misuse):
        AtTime(no_time)
    with recover(rig.log) as recovery, pytest.raises(Misuse):
        recovery.statistics()


_NO_SETTINGS: list[dict[str, Any]] = [
    {"fold_bytes": math.nan},  # It would never fold.
    {"threads": "2"},
    {"lease_ttl_s": 0},
    {"value_schema_id": "1"},
    {"spill_directories": "/"},  # A tuple of one easily lacks its comma. Of a text, each letter would be a directory.
    {"spill_directories": None},
    {"cache": "/tmp"},
]


@pytest.mark.parametrize("given", _NO_SETTINGS, ids=str)
def test_settings_without_sense_are_refused(given: dict[str, Any]) -> None:
    """Bad settings are refused by name when they are made."""
    with pytest.raises(ConfigError, match=next(iter(given))):
        RecoverySettings(**given)


@pytest.mark.parametrize("poll_s", [-1, math.nan, math.inf, "1", None])
def test_a_pause_that_no_thread_can_make_is_refused(poll_s: Any) -> None:
    """A pause that no thread can make is refused before anything is opened."""
    with pytest.raises(ConfigError, match="poll_s"):
        recover(_filled().log).follow(poll_s=poll_s)


def test_no_changes_are_read_by_the_plan_of_a_state() -> None:
    """The plan of a state refuses to read changes or to be cut into their tasks: it would seem empty."""
    rig = _filled()
    plan = recover(rig.log).plan
    with pytest.raises(Misuse, match="the plan is of a state"):
        split_changes(plan, 2)
    with pytest.raises(Misuse, match="the plan is of a state"):
        next(read_changes(rig.log, plan))


def test_no_key_groups_is_no_state() -> None:
    """An empty set of key groups reads nothing."""
    with recover(_filled().log, key_groups=[]) as recovery:
        assert recovery.to_dict() == {}
        assert (recovery.plan.partitions, recovery.plan.size_bytes) == ((), 0)


def test_statistics_count_what_was_read() -> None:
    """Statistics count result rows, rows of runs, changes of the tail, and plans."""
    rig = _filled()
    recovery = recover(rig.log)
    state = recovery.to_dict()
    done = recovery.statistics()
    assert (done.rows, done.run_rows, done.tail_changes, done.plans) == (len(state), 50, 25, 1)
    assert (done.run_bytes, done.tail_bytes) == (recovery.plan.run_bytes, recovery.plan.replay.size_bytes)
    assert done.total_s > 0
    assert done.changes_per_s > 0
    assert done.bytes_per_s > 0


def test_recovering_writes_nothing_to_the_log() -> None:
    """Recovering leaves the ends of data and ledger, and the files on the store, unchanged."""
    rig = _filled()
    before = rig.log.data_offsets(), rig.end(), sorted(rig.log.store.list())
    assert recover(rig.log).to_dict() == recover(rig.log).to_dict() == rig.state_at(rig.end())
    assert (rig.log.data_offsets(), rig.end(), sorted(rig.log.store.list())) == before


def test_progress_ends_at_the_whole() -> None:
    """The last report is done, with all bytes and changes, for some key groups as for all."""
    for key_groups in (None, [1, 2]):
        reports: list[Progress] = []
        settings = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0))
        recover(_filled().log, key_groups=key_groups, on_progress=reports.append, settings=settings).to_dict()
        assert reports[0].phase is Phase.READ
        assert reports[-1].phase is Phase.DONE
        assert (reports[-1].bytes_done, reports[-1].changes_done) == (
            reports[-1].bytes_total,
            reports[-1].changes_total,
        )


def test_parquet_is_sorted_and_replaces_whole(tmp_path: Path) -> None:
    """The Parquet file holds the ordered table, replaces an older file, and leaves nothing else."""
    rig, path = _filled(), tmp_path / "state.parquet"
    path.write_bytes(b"an older file")
    recovery = recover(rig.log)
    rows = recovery.to_parquet(path)
    table = pq.read_table(str(path))
    assert table.equals(recovery.to_arrow(ordered=True).combine_chunks())
    assert rows == table.num_rows == len(rig.state_at(rig.end()))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("key_type", "keys"), [("string", ["a", "ü", "a\0"]), ("long", [-1, 0, 2**62, -(2**63)])])
def test_keys_of_every_type(key_type: str, keys: list[object]) -> None:
    """Keys come back unchanged, in their native order."""
    rig = history_rig(key_type=key_type)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(key, b"1") for key in keys])
        rig.snapshot()
        rig.commit(writer, 2, [(key, b"2") for key in keys[1:]])
    assert recover(rig.log).to_dict() == rig.state_at(rig.end())
    ordered = recover(rig.log).to_arrow(ordered=True)
    rows = list(zip(ordered.column(0).to_pylist(), ordered.column(1).to_pylist(), strict=True))
    order = [(group, key.encode() if isinstance(key, str) else key) for group, key in rows]
    assert order == sorted(order)


def test_values_are_converted_to_the_newest_schema() -> None:
    """Runs and chunks of an older schema come out in the newest one, as dicts and as a struct column."""
    rig = history_rig(value_schema=_V1)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", {"n": 1}), (b"b", {"n": 2})])
        rig.snapshot()
        rig.commit(writer, 2, [(b"c", {"n": 3}), (b"a", None)])
    rig.log.value_schemas.add(_V2)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 3, [(b"d", {"n": 4, "s": "x", "d": 1})])
    expected = {
        b"b": {"n": 2, "s": None, "d": 7},
        b"c": {"n": 3, "s": None, "d": 7},
        b"d": {"n": 4, "s": "x", "d": 1},
    }
    assert recover(rig.log).to_dict() == expected
    ordered = recover(rig.log).to_arrow(ordered=True)
    assert dict(zip(ordered.column("key").to_pylist(), ordered.column("value").to_pylist(), strict=True)) == expected
    assert pa.types.is_struct(ordered.schema.field("value").type)


def test_an_older_value_schema_can_be_asked_for_while_it_can_read() -> None:
    """A state with values of the first schema only can be read in it, even after a second one was added."""
    rig = history_rig(value_schema=_V1)
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", {"n": 1})])
    rig.log.value_schemas.add(_V2)
    assert recover(rig.log, settings=RecoverySettings(value_schema_id=1)).to_dict() == {b"a": {"n": 1}}


def test_keys_of_a_caller_hashed_log_are_told_apart_by_group() -> None:
    """One key in two key groups is two keys, and the dict has both."""
    rig = history_rig(hash_rule="caller")
    with Writer(rig.log, "w") as writer:
        writer.append(0, b"a", b"zero")
        writer.append(5, b"a", b"five")
        writer.commit(checkpoint_id=1)
    assert recover(rig.log).to_dict() == {(0, b"a"): b"zero", (5, b"a"): b"five"}


def test_row_groups_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request for a run is unanswered, another one is under way."""
    monkeypatch.setattr(run_reader, "PIECE_BYTES", 1)
    another, waited, read = threading.Event(), list[bool](), run_reader.RunReader.row_groups

    def wait_for_another(
        reader: run_reader.RunReader, numbers: Sequence[int], wanted: Collection[int] | None = None
    ) -> Iterator[pa.Table]:
        if waited:
            another.set()
        else:
            waited.append(False)
            waited[0] = another.wait(_PATIENCE_S)
        return read(reader, numbers, wanted)

    monkeypatch.setattr(run_reader.RunReader, "row_groups", wait_for_another)
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(100)])
    rig.snapshot()
    assert recover(rig.log).to_dict() == rig.state_at(rig.end())
    assert waited == [True]


def test_sorted_targets_spill_a_large_tail(tmp_path: Path) -> None:
    """Sorted targets spill a tail above `fold_bytes` to files that the environment opens."""
    rig, disks = history_rig(), Disks()
    settings = RecoverySettings(fold_bytes=20_000, spill_directories=(tmp_path,))
    with Writer(rig.log, "w") as writer:
        for number in range(1, 5):
            rig.commit(writer, number, [(b"key-%d" % i, b"%d" % number * 300) for i in range(number, 100)])
    expected = rig.state_at(rig.end())
    table = Environment(open_spill_file=disks.open).run(recover, rig.log, settings=settings).to_arrow(ordered=True)
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
    assert (len(disks.opened) > 1, disks.open_files) == (True, 0)
    disks.room_bytes = 10_000
    target = tmp_path / "state.parquet"
    with pytest.raises(StorageFull):
        Environment(open_spill_file=disks.open).run(recover, rig.log, settings=settings).to_parquet(target)
    assert (disks.open_files, list(tmp_path.iterdir())) == (0, [])


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("how", ["dict", "tail", "ordered", "stream"])
def test_progress_counts_loading(how: str) -> None:
    """No report before the last is complete, and none goes back.

    Reading without loading is half, as is an unfolded tail.
    """
    rig, seen = _filled(snapshot=how != "tail"), list[Progress]()
    recovery = recover(
        rig.log, settings=RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0.0)), on_progress=seen.append
    )
    if how in ("dict", "tail"):
        recovery.to_dict()
    elif how == "ordered":
        recovery.to_arrow(ordered=True)
    else:
        recovery.stream().apply(lambda _: None)
    fractions = [report.fraction for report in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert seen[-1].phase is Phase.DONE
    assert all(report.loaded < 1.0 or report.phase is not Phase.READ for report in seen[:-2])
    if how == "tail":
        assert any(report.fraction == 0.5 for report in seen if report.bytes_done == report.bytes_total)
