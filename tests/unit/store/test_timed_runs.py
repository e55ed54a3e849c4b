"""Runs with the column `due`: only where a row has one, and byte for byte as ever where none has."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.errors import CorruptRun, StorageFull
from statelog.schemas.changes.due import DUE, shown
from statelog.store.merge import merge_streams
from statelog.store.port import Store
from statelog.store.run_reader import RunReader, read_back
from statelog.store.run_writer import RunWriter, WrittenRun
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.samples.runs import LABEL, change_table, label_of, table_of, timed_rows, timed_table, write_run

NOON = 1_800_000_000_000
PLAIN = [(group, 0, b"key-%03d" % i, b"v" * 40) for group in range(16) for i in range(50)]
TIMED = [(*row, NOON + i if i % 3 else None) for i, row in enumerate(PLAIN)]


@pytest.fixture
def store() -> Store:
    """Return a store in memory."""
    return MemoryStore(MemoryDisk(lambda: 0.0), "orders")


def _written(path: Path, tables: Sequence[pa.Table], target_rows: int = 120) -> WrittenRun:
    with RunWriter(path, change_table([]).schema, LABEL, target_rows=target_rows) as writer:
        for table in tables:
            writer.append(table)
        return writer.finish()


def test_dues_come_back(store: Store, tmp_path: Path) -> None:
    """A run has the dues of its rows, counts them, and verifies."""
    run = write_run(store, tmp_path, [timed_table(TIMED)], target_rows=120)
    dues = [due for *_, due in TIMED if due is not None]

    assert (run.due_rows, run.first_due_ms, run.last_due_ms) == (len(dues), min(dues), max(dues))
    with RunReader(store.open(run.path), run) as reader:
        reader.verify()
        assert timed_rows(table_of(reader)) == TIMED
        assert label_of(reader.footer) == LABEL.to_parquet(due=True)


def test_a_column_without_a_due_is_not_written(tmp_path: Path) -> None:
    """Rows whose dues are all null make the file that rows without the column make."""
    plain, nulls = change_table(PLAIN), shown(change_table(PLAIN), due=True)
    first, second = _written(tmp_path / "a", [plain]), _written(tmp_path / "b", [nulls])

    assert first.local.read_bytes() == second.local.read_bytes()
    assert (second.file.due_rows, second.file.first_due_ms, second.file.last_due_ms) == (0, 0, 0)
    assert pq.ParquetFile(first.local).schema_arrow.names == ["key_group", "op", "key", "value"]


@pytest.mark.parametrize("first_timed", [0, 1, 400, 799])
def test_the_first_due_may_come_late(tmp_path: Path, first_timed: int) -> None:
    """A run that has rows without a due already gets the column with its first due, and nothing else is left."""
    rows = [(*row, NOON + i if i >= first_timed else None) for i, row in enumerate(PLAIN)]
    tables = [timed_table(rows).slice(start, 100) for start in range(0, len(rows), 100)]
    tables = [table if table.column(DUE.name).null_count < 100 else shown(table, due=False) for table in tables]
    written = _written(tmp_path / "run.parquet", tables)

    assert written.file.due_rows == len(rows) - first_timed
    with RunReader(written.local.open("rb"), written.file) as reader:
        reader.verify()
        assert timed_rows(table_of(reader)) == rows
    assert list(tmp_path.iterdir()) == [written.local]


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """A disk that is full while the column is added leaves neither of the two files."""

    def full(step: str, _: Path) -> None:
        if step in ("rewrite", "read"):
            raise OSError(28, "No space left on device")

    rows = [(*row, NOON if i == 799 else None) for i, row in enumerate(PLAIN)]
    for _ in range(2):
        with (
            pytest.raises(StorageFull),
            RunWriter(tmp_path / "run", change_table([]).schema, LABEL, target_rows=120, disk=full) as writer,
        ):
            for start in range(0, 800, 100):
                writer.append(timed_table(rows).slice(start, 100))
            writer.finish()
        assert list(tmp_path.iterdir()) == []


def test_dues_take_few_bytes(tmp_path: Path) -> None:
    """Dues that are spread over an hour take less than four bytes a row."""
    keys = [(i // 100, 0, b"key-%06d" % i, b"value-%06d" % (i * 7919 % 100_003)) for i in range(50_000)]
    timed = [(*row, NOON + i * 7919 % 3_600_000) for i, row in enumerate(keys)]
    sizes = [
        _written(tmp_path / name, [table], 1 << 15).file.size_bytes
        for name, table in (("plain", change_table(keys)), ("timed", timed_table(timed)))
    ]
    assert (sizes[1] - sizes[0]) / len(keys) < 4


def test_a_file_that_differs_from_its_manifest_is_corrupt(store: Store, tmp_path: Path) -> None:
    """A run whose manifest counts other dues, or none, is damage; so is a delete with a due."""
    run = write_run(store, tmp_path, [timed_table(TIMED)])
    with pytest.raises(CorruptRun, match="other columns"):
        read_back(store, replace(run, due_rows=0))
    with pytest.raises(CorruptRun, match="another number of rows with a due"):
        read_back(store, replace(run, due_rows=run.due_rows - 1))
    plain = write_run(store, tmp_path, [change_table(PLAIN)])
    with pytest.raises(CorruptRun, match="other columns"):
        read_back(store, replace(plain, due_rows=1))
    wrong = write_run(store, tmp_path, [timed_table([(0, 1, b"a", None, NOON)])])
    with pytest.raises(CorruptRun, match="a delete has a due"):
        read_back(store, wrong)


def test_runs_with_and_without_dues_merge() -> None:
    """The newest row of a key counts with its due, or without one."""
    old = timed_table(
        [(0, 0, b"a", b"1", NOON), (0, 0, b"b", b"1", NOON), (0, 0, b"c", b"1", NOON), (1, 0, b"d", b"1", 5)]
    )
    new = change_table([(0, 0, b"a", b"2"), (0, 1, b"c", None)])
    newest = timed_table([(1, 0, b"d", b"3", 7), (1, 0, b"e", b"3", None)])

    def merged(*tables: pa.Table, drop_deletes: bool = False) -> list[tuple[Any, ...]]:
        found = list(merge_streams([[table] for table in tables], drop_deletes=drop_deletes))
        return [row for table in found for row in timed_rows(table)]

    assert merged(old, new, newest) == [
        (0, 0, b"a", b"2", None),
        (0, 0, b"b", b"1", NOON),
        (0, 1, b"c", None, None),
        (1, 0, b"d", b"3", 7),
        (1, 0, b"e", b"3", None),
    ]
    assert [row[2] for row in merged(old, new, newest, drop_deletes=True)] == [b"a", b"b", b"d", b"e"]
    assert merged(new, old)[0] == (0, 0, b"a", b"1", NOON)


def test_other_tools_read_the_column(tmp_path: Path) -> None:
    """DuckDB reads the dues of a run as times in UTC."""
    written = _written(tmp_path / "run.parquet", [timed_table([(0, 0, b"a", b"1", 1_700_000_000_250)])])
    [found] = duckdb.execute(f"select epoch_ms(due), due from '{written.local}'").fetchall()
    assert found[0] == 1_700_000_000_250
