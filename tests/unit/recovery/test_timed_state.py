"""Dues through snapshots, tails and every target: each row has the due of its newest change, or none."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rocksdict

from statelog.errors import ConfigError, CorruptManifest, UnknownFormat
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.reading import AtPosition, plan_changes
from statelog.reading.sorted_tail import MemoryTail, SortedTail
from statelog.recovery import RecoverySettings, newest_changes, read_changes, read_rocksdb_state, recover
from statelog.recovery import rocksdb_target as rocksdb_module
from statelog.recovery.rocksdb_dues import DUE_FAMILY
from statelog.recovery.targets import values_of
from statelog.schemas.avro import FileCodec
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.names import MANIFESTS
from statelog.schemas.values.schema import OPAQUE
from statelog.store.merge import merge_streams
from tests.support.faults.spill import Disks
from tests.support.rigs.log import settings_for, twin_rig
from tests.support.rigs.timed import NOON_MS, TimedLog, TimedRow, timed_state
from tests.support.samples.runs import change_table, timed_rows, timed_table

TimedChange = tuple[int, int, bytes, bytes | None, int | None]
A, B, C, D = b"alice", b"bob", b"carol", b"dora"


def untyped(value: Any) -> Any:
    """Return a value of a type that a type checker would refuse."""
    return value


def _state(made: TimedLog, **options: bool) -> dict[bytes, TimedRow]:
    with made.open() as log:
        return timed_state(recover(log).to_arrow(due=True, **options))


@pytest.fixture
def made(tmp_path: Path) -> TimedLog:
    """Return a log that begins to use dues after its first snapshot, with a second snapshot and a tail."""
    made = TimedLog()
    made.put({A: (b"1", None), B: (b"1", None), C: (b"1", None)})
    made.round(tmp_path)
    made.put({B: (b"2", NOON_MS), C: (b"2", NOON_MS + 1), D: (b"2", NOON_MS + 2)})
    made.round(tmp_path)
    made.put({C: (b"3", None), D: None, A: (b"3", NOON_MS + 3)})
    return made


def test_a_row_has_the_due_of_its_newest_change(made: TimedLog) -> None:
    """A put again moves a due, one without a due clears it, and a delete ends it, in every target."""
    expected = {A: (b"3", NOON_MS + 3), B: (b"2", NOON_MS), C: (b"3", None)}
    assert made.rows == expected
    assert _state(made) == expected
    assert _state(made, ordered=True) == expected


def test_without_due_the_columns_are_as_ever(made: TimedLog, tmp_path: Path) -> None:
    """Who does not ask for dues gets today's columns, of a log that has dues."""
    with made.open() as log:
        assert recover(log).to_arrow().column_names == ["key_group", "key", "value"]
        recover(log).to_parquet(tmp_path / "state.parquet")
        assert pq.ParquetFile(tmp_path / "state.parquet").schema_arrow.names == ["key_group", "key", "value"]
        with recover(log).stream() as stream:
            assert {tuple(portion.changes.column_names) for portion in stream} == {("key_group", "op", "key", "value")}
        plan = plan_changes(log, AtPosition(0))
        assert {len(table.schema) for table in newest_changes(log, plan)} == {4}
        assert {len(batch.schema) for batch in read_changes(log, plan)} == {8}
        assert recover(log).to_dict() == {key: value for key, (value, _) in made.rows.items()}


def test_a_log_without_dues_shows_nulls(tmp_path: Path) -> None:
    """Who asks for dues always gets the column."""
    made = TimedLog()
    made.put({A: (b"1", None)})
    made.round(tmp_path)
    with made.open() as log:
        table = recover(log).to_arrow(due=True)
        assert table.schema.field("due").type == pa.timestamp("ms", "UTC")
        assert table.column("due").to_pylist() == [None]
        assert recover(log, key_groups=[]).to_arrow(due=True).column_names == ["key_group", "key", "value", "due"]
        with recover(log).stream(due=True) as stream:
            assert {len(portion.changes.schema) for portion in stream} == {5}
        [batch] = read_changes(log, plan_changes(log, AtPosition(0)), due=True)
        assert batch.column("due").to_pylist() == [None]


def test_a_due_is_asked_for_by_a_bool(made: TimedLog, tmp_path: Path) -> None:
    """Anything but a bool is refused where it is given."""
    with made.open() as log:
        asked: list[Callable[[], object]] = [
            lambda: recover(log).to_arrow(due=untyped("yes")),
            lambda: recover(log).to_parquet(tmp_path / "a", due=untyped(1)),
            lambda: recover(log).stream(due=untyped(None)),
            lambda: recover(log).follow(due=untyped(0)),
            lambda: newest_changes(log, plan_changes(log), due=untyped("a")),
            lambda: next(read_changes(log, plan_changes(log), due=untyped("a"))),
        ]
        for ask in asked:
            with pytest.raises(ConfigError, match="due is of type"):
                ask()


def test_parquet_streams_and_changes_have_dues(made: TimedLog, tmp_path: Path) -> None:
    """The file, the stream, a follower, the newest changes and all changes show the dues."""
    with made.open() as log:
        recover(log).to_parquet(tmp_path / "state.parquet", due=True)
        assert timed_state(pq.read_table(tmp_path / "state.parquet")) == made.rows
        with recover(log).stream(due=True) as stream:
            tables = [portion.changes for portion in stream if portion.changes.num_rows]
        assert timed_state(pa.concat_tables(tables)) == made.rows
        found = pa.concat_tables(newest_changes(log, plan_changes(log, AtPosition(0)), due=True))
        puts = found.filter(pa.compute.not_equal(found.column("op"), DELETE))
        assert timed_state(puts) == made.rows
        assert found.filter(pa.compute.equal(found.column("op"), DELETE)).column("due").to_pylist() == [None]
        [batch] = read_changes(log, plan_changes(log, AtPosition(0)), due=True)
        dues = batch.column("due").cast(pa.int64()).to_pylist()
        assert sorted(due for due in dues if due) == [NOON_MS + i for i in (0, 1, 2, 3)]
        with recover(log).follow(due=True, poll_s=0.01) as stream:
            state = dict[bytes, TimedRow]()
            made.put({B: (b"4", NOON_MS + 9)})
            while state.get(B) != (b"4", NOON_MS + 9):
                state |= timed_state(next(stream).changes)
        assert state == made.rows


def test_a_dict_has_its_dues(made: TimedLog) -> None:
    """`dict_and_dues` returns the dict of `to_dict`, and the due of each key that has one."""
    with made.open() as log:
        found, dues = recover(log).dict_and_dues(values_of)
        assert found == recover(log).to_dict()
    assert dues == {A: NOON_MS + 3, B: NOON_MS}


@pytest.mark.parametrize("seed", range(3))
def test_a_story_of_rounds_and_merges(tmp_path: Path, seed: int) -> None:
    """After many commits, rounds and merges, of which the later ones use dues, every way gives the state of a dict."""
    rng, made = random.Random(seed), TimedLog()
    for step in range(24):
        made.put(made.some(rng, due_share=0.0 if step < 6 else 0.4 if step < 18 else 0.05))
        if rng.random() < 0.6:
            made.round(tmp_path, fanout=2, keep=2)
    assert _state(made) == _state(made, ordered=True) == made.rows
    settings = RecoverySettings(fold_bytes=1 << 16, spill_directories=(tmp_path,), memory_bytes=1 << 16)
    with made.open() as log:
        assert timed_state(recover(log, settings=settings).to_arrow(due=True, ordered=True)) == made.rows
        digest = recover(log).digest()
        rows = pa.concat_tables([timed_table([(0, 0, key, *row)]) for key, row in sorted(made.rows.items())])
        groups = pa.array([log.descriptor.key_group_of(key) for key in sorted(made.rows)], pa.uint16())
        assert digest == StateDigest.of([rows.set_column(0, "key_group", groups)], OPAQUE)
        manifest = log.manifests.newest()
        assert manifest is not None
        snapshot = timed_state(recover(log, at=AtPosition(manifest.position)).to_arrow(due=True))
        assert sum(run.due_rows for run in manifest.runs) >= sum(due is not None for _, due in snapshot.values())


def test_the_digest_tells_dues_apart(tmp_path: Path) -> None:
    """Two states that differ in a due differ in their digests. A row without one has the digest that it always had."""
    made = [TimedLog(), TimedLog(), TimedLog()]
    for one, due_ms in zip(made, (None, NOON_MS, NOON_MS + 1), strict=True):
        one.put({A: (b"1", due_ms), B: (b"1", None)})
    digests = list[str]()
    for one in made:
        with one.open() as log:
            digests.append(str(recover(log).digest()))
            one.round(tmp_path)
            assert str(recover(log).digest()) == digests[-1]
    assert len(set(digests)) == 3
    plain = change_table([(0, 0, A, b"1")])
    nulls = timed_table([(0, 0, A, b"1", None)])
    assert StateDigest.of([plain], OPAQUE) == StateDigest.of([nulls], OPAQUE)


def test_tails_join_changes_with_and_without_dues(tmp_path: Path) -> None:
    """Both tails fold changes with and without the column, in memory and spilled, and the newest change counts."""
    rng, disks = random.Random(5), Disks()
    model = dict[tuple[int, bytes], TimedChange]()
    spilled = SortedTail(fold_bytes=20_000, directories=(tmp_path,), open_file=disks.open)
    memory, small = MemoryTail(fold_bytes=20_000), MemoryTail(fold_bytes=1 << 30)
    for step in range(60):
        rows: list[TimedChange] = [
            (group, int(value is None), b"%03d" % rng.randrange(200), value, due)
            for group in range(4)
            for due in [NOON_MS + rng.randrange(1000) if step % 3 and rng.random() < 0.5 else None]
            for value in [rng.randbytes(50) if due or rng.random() < 0.7 else None]
        ] * 8
        rows = list(dict.fromkeys(rows))
        table = timed_table(rows) if step % 3 else change_table(row[:4] for row in rows)
        for batch in table.combine_chunks().to_batches():
            for tail in (spilled, memory, small):
                tail.add(0, batch)
        model.update({(row[0], row[2]): row for row in rows})
    expected = [model[at] for at in sorted(model)]
    spilled.finish()
    assert [row for one in merge_streams(spilled.streams(), drop_deletes=False) for row in timed_rows(one)] == expected
    assert [row for one in memory.sorted(0) for row in timed_rows(one)] == expected
    live = [row for one in small.live(0) for row in timed_rows(one)]
    assert sorted(live) == [row for row in expected if row[1] == 0]
    spilled.close()


# ---- formats: who does not know dues stops


def test_only_a_manifest_of_dues_has_the_newer_format(tmp_path: Path) -> None:
    """A manifest has format 3 from the first run with a due on. A program that knows format 2 refuses it."""
    made = TimedLog()
    made.put({A: (b"1", None)})
    made.round(tmp_path)
    made.put({A: (b"1", NOON_MS)})
    made.round(tmp_path)
    older = FileCodec("manifest-2", version=2, error=CorruptManifest)
    with made.open() as log:
        first, second = (log.store.read(MANIFESTS.path(number)) for number in (1, 2))
        newest = log.manifests.newest()
    assert older.decode(first, "m", lambda datum: datum["number"]) == 1
    with pytest.raises(UnknownFormat):
        older.decode(second, "m", lambda datum: datum["number"])
    assert newest is not None
    spans = [(run.due_rows, run.first_due_ms, run.last_due_ms) for run in newest.runs]
    assert spans == [(0, 0, 0), (1, NOON_MS, NOON_MS)]


def test_merged_runs_that_lost_their_dues_have_the_first_format_again(tmp_path: Path) -> None:
    """When no row has a due any more, a merge writes runs and manifests as ever."""
    made = TimedLog()
    made.put({A: (b"1", NOON_MS), B: (b"1", NOON_MS)})
    made.round(tmp_path)
    made.put({A: (b"2", None), B: None})
    made.round(tmp_path, fanout=2)
    with made.open() as log:
        newest = log.manifests.newest()
        assert newest is not None
        assert [run.due_rows for run in newest.runs] == [0]
        assert b"statelog.format\x022" in log.store.read(MANIFESTS.path(newest.number))
        with log.store.open(newest.runs[0].path) as file:
            assert pq.ParquetFile(file).schema_arrow.names == ["key_group", "op", "key", "value"]


def test_values_that_are_converted_keep_their_dues(tmp_path: Path) -> None:
    """Rows of an older value schema have their dues in the newest one, from runs, chunks and ledger records."""
    first = '{"type":"record","name":"V","fields":[{"name":"n","type":"long"}]}'
    second = first.replace("]}", ',{"name":"s","type":"string","default":"x"}]}')
    with twin_rig("typed").create(value_schema=first) as log:
        with Writer(log, "w") as writer:
            writer.put(A, {"n": 1}, due=NOON_MS / 1000)
            writer.commit()
        run_round(log, settings_for(tmp_path))
        with Writer(log, "w") as writer:
            writer.put(B, {"n": 2}, due=NOON_MS / 1000)
            writer.put(C, {"n": 2})
            writer.commit()
        log.value_schemas.add(second)
        with Writer(log, "w") as writer:
            writer.put(D, {"n": 3, "s": "y"})
            writer.commit()
        found: dict[bytes, Any] = dict(timed_state(recover(log).to_arrow(due=True)))
    assert found == {
        A: ({"n": 1, "s": "x"}, NOON_MS),
        B: ({"n": 2, "s": "x"}, NOON_MS),
        C: ({"n": 2, "s": "x"}, None),
        D: ({"n": 3, "s": "y"}, None),
    }


# ---- RocksDB


def _entries(path: Path) -> dict[bytes, bytes]:
    with rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True)) as database:
        family = database.get_column_family(DUE_FAMILY)
        entries: Any = family.items()  # In raw mode both are bytes.
        found = {bytes(key): bytes(value) for key, value in entries}
        family.close()
        return found


@pytest.mark.parametrize("portion_bytes", [1, 1 << 20])
def test_a_database_has_both_entries_of_a_due(
    tmp_path: Path, portion_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB gets a family of dues: each by its key, and each with its key in the order of time."""
    monkeypatch.setattr(rocksdb_module, "_PORTION_BYTES", portion_bytes)
    rng, made = random.Random(1), TimedLog()
    for _ in range(6):
        made.put(made.some(rng, due_share=0.5))
    made.round(tmp_path)
    made.put(made.some(rng, due_share=0.5))
    with made.open() as log:
        recover(log).to_rocksdb(tmp_path / "db", sst_bytes=1000)
    state, dues = read_rocksdb_state(tmp_path / "db"), {key: due for key, (_, due) in made.rows.items() if due}
    expected = {b"k" + state.key(key): due.to_bytes(8, "big") for key, due in dues.items()}
    expected |= {b"t" + due.to_bytes(8, "big") + state.key(key): b"" for key, due in dues.items()}
    assert _entries(tmp_path / "db") == expected


def test_a_database_without_dues_has_no_family_of_them(tmp_path: Path) -> None:
    """RocksDB gets the family only if a row has a due, not if one had."""
    made = TimedLog()
    made.put({A: (b"1", NOON_MS)})
    made.round(tmp_path)
    made.put({A: (b"1", None)})
    with made.open() as log:
        recover(log).to_rocksdb(tmp_path / "db")
    assert sorted(rocksdict.Rdict.list_cf(str(tmp_path / "db"))) == ["default", "statelog"]
