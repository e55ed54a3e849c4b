"""Runs: their layout, checks of writer and reader, and reading them with other tools."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.environment import inline
from statelog.errors import CorruptManifest, CorruptRun, NotFound, StorageFull
from statelog.schemas.snapshot.runs import (
    TARGET_BYTES,
    TARGET_ROWS,
    RowGroupPacker,
    RowGroupSpan,
    RunFile,
    RunIndex,
    first_unsorted,
    only_key_groups,
    row_groups_for,
)
from statelog.schemas.values.schema import parse_value_schema, rows_to_struct
from statelog.store.merge import Lane, LanePart, merge_streams
from statelog.store.port import RangeReader, Store
from statelog.store.run_reader import (
    PIECE_BYTES,
    RunHandles,
    RunReader,
    open_local,
    read_back,
    read_back_written,
    stored,
)
from statelog.store.run_writer import RunWriter, upload_run
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.samples.runs import LABEL, change_table, label_of, run_schema, table_of, tables_of, write_run
from tests.support.waiting import wait_for

CHANGES = [(group, 0, b"key-%d" % i, b"v" * 40) for group in range(16) for i in range(50)]


@pytest.fixture
def store() -> Store:
    """Return a store in memory."""
    return MemoryStore(MemoryDisk(lambda: 0.0), "orders")


def _packed(tables: list[pa.Table], rows: int, size_bytes: int = 1 << 30) -> list[pa.Table]:
    packer = RowGroupPacker(rows, size_bytes)
    return [*(group for table in tables for group in packer.add(table)), *packer.finish()]


def _groups(table: pa.Table) -> list[int]:
    return sorted(set(table.column("key_group").to_pylist()))


def test_small_key_groups_share_a_row_group() -> None:
    """Row groups hold whole key groups, as many as fit under the target."""
    packed = _packed([change_table(CHANGES)], rows=120)

    assert [_groups(table) for table in packed] == [[i, i + 1] for i in range(0, 16, 2)]


def test_a_row_group_of_one_table_is_in_one_piece() -> None:
    """A row group has one piece per column, however many key groups it holds.

    Parquet's writer encodes each piece separately.
    """
    packed = _packed([change_table(CHANGES)], rows=120)

    assert {column.num_chunks for table in packed for column in table.columns} == {1}


def test_packing_does_not_depend_on_how_the_input_is_cut() -> None:
    """Many small tables give the same row groups as one."""
    table = change_table(CHANGES)
    slices = [table.slice(start, 7) for start in range(0, table.num_rows, 7)]

    assert [t.to_pylist() for t in _packed(slices, rows=120)] == [t.to_pylist() for t in _packed([table], rows=120)]


def test_a_huge_key_group_spans_row_groups() -> None:
    """A key group above the target is cut, and the groups around it are still whole."""
    huge = [(5, 0, b"%06d" % i, b"") for i in range(1000)]
    packed = _packed([change_table([(1, 0, b"a", b""), *huge, (9, 0, b"z", b"")])], rows=300)

    assert [(_groups(t), t.num_rows) for t in packed] == [
        ([1], 1),
        ([5], 300),
        ([5], 300),
        ([5], 300),
        ([5, 9], 101),
    ]


def test_large_values_make_small_row_groups() -> None:
    """Row groups are bounded by bytes as well as by rows."""
    packed = _packed([change_table([(i, 0, b"k", b"x" * 1000) for i in range(8)])], rows=100, size_bytes=2100)

    assert [t.num_rows for t in packed] == [2, 2, 2, 2]


def test_pruning_takes_exactly_the_row_groups_that_overlap() -> None:
    """A row group is read if and only if a wanted key group lies in its span."""
    spans = tuple(RowGroupSpan(a, b, 1, 0, 0, 0) for a, b in [(0, 4), (4, 5), (5, 6), (5, 9), (20, 30)])
    index = RunIndex(row_groups=spans, footer_offset=0, footer_checksum=0)

    assert row_groups_for(index, range(5, 6)) == [2, 3]
    assert row_groups_for(index, [3, 29]) == [0, 4]
    assert row_groups_for(index, range(9, 20)) == []
    assert row_groups_for(index, []) == []


def test_index_survives_its_bytes() -> None:
    """An index survives its compact form, and a truncated form is refused."""
    spans = (RowGroupSpan(0, 4, 1, 4, 10, 2**64 - 1), RowGroupSpan(4, 65536, 2**40, 14, 2**40, 0))
    index = RunIndex(row_groups=spans, footer_offset=2**40 + 14, footer_checksum=7)

    assert RunIndex.from_bytes(index.to_bytes()) == index
    with pytest.raises(CorruptManifest):
        RunIndex.from_bytes(index.to_bytes()[:-1])


def test_first_unsorted_names_the_row() -> None:
    """Equal keys, falling keys and falling key groups are found. The same key in the next group is allowed."""
    schema = run_schema(pa.int64(), pa.binary())

    def table(*places: tuple[int, int]) -> pa.Table:
        columns = {"key_group": [g for g, _ in places], "op": [0] * len(places), "key": [k for _, k in places]}
        return pa.table({**columns, "value": [b""] * len(places)}, schema=schema)

    assert first_unsorted(table((1, -5), (1, 3), (2, -5))) is None
    assert first_unsorted(table((1, 3), (1, 3))) == 1
    assert first_unsorted(table((0, 0), (1, 3), (1, -3))) == 2
    assert first_unsorted(table((300, 0), (2, 3))) == 1


def test_only_key_groups_is_the_same_for_ranges_and_sets() -> None:
    """A slice for a range and a filter for a set give the same rows."""
    table = change_table(CHANGES)

    assert only_key_groups(table, range(3, 6)).equals(only_key_groups(table, {3, 4, 5}).combine_chunks())
    assert only_key_groups(table, range(9, 3)).num_rows == 0


def test_a_disk_that_harms_a_file_before_it_is_complete(tmp_path: Path) -> None:
    """A file that the disk damages before it is complete does not match its checksums, those of the intended bytes."""

    def harmed(step: str, path: Path) -> None:
        if step == "finish":
            data = bytearray(path.read_bytes())
            data[data.index(b"a value that stands alone") + 5] ^= 1
            with path.open("r+b") as file:
                file.write(data)

    table = change_table([(1, 0, b"k", b"a value that stands alone")])
    with RunWriter(tmp_path / "run", table.schema, LABEL, disk=harmed) as writer:
        writer.append(table)
        written = writer.finish()
    with RunReader(open_local(written.local, "run"), written.file) as reader, pytest.raises(CorruptRun):
        table_of(reader)


def test_what_was_written_a_moment_ago_is_decoded_in_one_place_and_found_by_its_footer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file is verified by decoding its widest row group.

    Its footer shows that the others are where the index has them.
    """
    wide, decoded = change_table([(1, 0, b"k", os.urandom(5000))]), list[int]()
    narrow = [change_table([(group, 0, b"%d" % i, b"") for i in range(2)]) for group in (0, 2, 3)]
    run = write_run(store, tmp_path, [narrow[0], wide, *narrow[1:]], target_rows=2)
    read = pq.ParquetFile.read_row_group

    def told(self: pq.ParquetFile, number: int, **options: Any) -> pa.Table:
        decoded.append(number)
        return read(self, number, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", told)
    read_back_written(store, run)
    assert ([span.rows for span in run.index.row_groups], decoded) == ([2, 1, 2, 2], [1])
    spans = (span._replace(rows=rows) for span, rows in zip(run.index.row_groups, [1, 1, 3, 2], strict=True))
    with pytest.raises(CorruptRun, match="the footer has another row group"):
        read_back_written(store, replace(run, index=replace(run.index, row_groups=tuple(spans))))


def test_whole_and_pruned_reads(store: Store, tmp_path: Path) -> None:
    """A run, or its wanted key groups, is read as written, and the local file is removed."""
    table = change_table(CHANGES)
    run = write_run(store, tmp_path, [table.slice(0, 333), table.slice(333)])

    assert list(tmp_path.iterdir()) == []
    read_back(store, run)
    with RunReader(store.open(run.path), run) as reader:
        assert table_of(reader).schema == table.schema
        assert label_of(reader.footer) == LABEL.to_parquet()
        assert table_of(reader).equals(table)
        assert table_of(reader, range(3, 5)).equals(only_key_groups(table, range(3, 5)))
        assert table_of(reader, {1, 9}).equals(only_key_groups(table, {1, 9}))
        assert table_of(reader, range(100, 200)).equals(table.schema.empty_table())


def test_only_the_row_groups_that_are_wanted_are_read(store: Store, tmp_path: Path) -> None:
    """Only wanted row groups are read, so all others may be damaged or long."""
    table = change_table(CHANGES)
    run = write_run(store, tmp_path, [table], target_rows=100)
    store.download(run.path, tmp_path / "copy")
    data = bytearray((tmp_path / "copy").read_bytes())
    for span in run.index.row_groups:
        if not span.first_key_group <= 3 < span.end_key_group:
            data[span.offset] ^= 1
    (tmp_path / "copy").write_bytes(data)
    with RunReader(open_local(tmp_path / "copy", run.path), run) as reader:
        assert table_of(reader, {3}).equals(only_key_groups(table, {3}))
        with pytest.raises(CorruptRun):
            table_of(reader, {9})


def test_a_local_copy_reads_like_the_store(store: Store, tmp_path: Path) -> None:
    """A downloaded run is verified and read in the same way. A missing one is NotFound."""
    run = write_run(store, tmp_path, [change_table(CHANGES)])
    store.download(run.path, tmp_path / "copy")

    with RunReader(open_local(tmp_path / "copy", run.path), run) as reader:
        assert table_of(reader).equals(change_table(CHANGES))
    with pytest.raises(NotFound):
        RunReader(open_local(tmp_path / "gone", run.path), run)


def test_an_empty_run_is_a_run(store: Store, tmp_path: Path) -> None:
    """A run without rows can be written, verified and read."""
    with RunWriter(tmp_path / "run", run_schema(pa.binary(), pa.binary()), LABEL) as writer:
        writer.append(change_table([]))
        written = writer.finish()

    run = upload_run(store, written)
    read_back(store, run)
    with RunReader(store.open(run.path), run) as reader:
        assert table_of(reader).num_rows == 0


def test_a_missing_run_is_not_found(store: Store, tmp_path: Path) -> None:
    """A deleted run is NotFound, and not damaged."""
    run = write_run(store, tmp_path, [change_table(CHANGES)])
    store.delete(run.path)

    with pytest.raises(NotFound):
        RunReader(store.open(run.path), run)


def test_leaving_without_finish_removes_the_file(tmp_path: Path) -> None:
    """A writer that was not finished leaves no file."""
    with RunWriter(tmp_path / "run", run_schema(pa.binary(), pa.binary()), LABEL) as writer:
        writer.append(change_table(CHANGES))

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_storage_full(tmp_path: Path) -> None:
    """A local disk without space is StorageFull, and the partial file is removed."""
    (tmp_path / "run").symlink_to("/dev/full")

    with (
        pytest.raises(StorageFull),
        RunWriter(tmp_path / "run", run_schema(pa.binary(), pa.binary()), LABEL) as writer,
    ):
        writer.append(change_table(CHANGES))
        writer.finish()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "second",
    [change_table([(3, 0, b"b", b"")]), change_table([(3, 0, b"a", b"")]), change_table([(2, 0, b"z", b"")])],
)
def test_a_writer_refuses_what_is_out_of_order(tmp_path: Path, second: pa.Table) -> None:
    """Keys must rise, also between two tables: an equal or a lower one is refused."""
    with RunWriter(tmp_path / "run", second.schema, LABEL) as writer:
        writer.append(change_table([(3, 0, b"b", b"")]))
        with pytest.raises(CorruptRun, match="out of order"):
            writer.append(second)


def test_a_writer_refuses_another_schema(tmp_path: Path) -> None:
    """A table of other columns is refused before it is written."""
    with (
        RunWriter(tmp_path / "run", run_schema(pa.int64(), pa.binary()), LABEL) as writer,
        pytest.raises(CorruptRun, match="schema"),
    ):
        writer.append(change_table(CHANGES))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 1},
        {"size_bytes": 10**6},
        {"index": RunIndex(row_groups=(), footer_offset=0, footer_checksum=0)},
    ],
)
def test_facts_of_another_file_are_refused(store: Store, tmp_path: Path, change: dict[str, Any]) -> None:
    """Facts that do not describe the file stop the reader before it decodes anything."""
    run = write_run(store, tmp_path, [change_table(CHANGES)])

    with pytest.raises(CorruptRun) as caught:
        RunReader(store.open(run.path), replace(run, **change))

    assert caught.value.facts["path"] == run.path


def test_a_swapped_run_is_noticed(store: Store, tmp_path: Path) -> None:
    """Another valid run of the same length under the same path is refused, also by a pruned read."""
    run = write_run(store, tmp_path, [change_table([(1, 0, b"a", b"one")])])
    other = write_run(store, tmp_path, [change_table([(1, 0, b"a", b"two")])])
    assert other.size_bytes == run.size_bytes

    with pytest.raises(CorruptRun), RunReader(store.open(other.path), replace(run, path=other.path)) as reader:
        table_of(reader, [1])


def test_settings_of_the_file(tmp_path: Path) -> None:
    """A run has LZ4, plain keys and values, statistics where readers prune, and our label in the footer."""
    with RunWriter(tmp_path / "run", run_schema(pa.binary(), pa.binary()), LABEL) as writer:
        writer.append(change_table(CHANGES))
        writer.finish()
    metadata = pq.read_metadata(tmp_path / "run")
    columns = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i) for i in range(4)}

    assert {column.compression for column in columns.values()} <= {"LZ4", "LZ4_RAW"}
    assert not columns["key"].has_dictionary_page
    assert not columns["value"].has_dictionary_page
    assert columns["key"].is_stats_set
    assert metadata.metadata is not None
    assert metadata.metadata[b"statelog.log"] == b"orders"


AVSC = """{"type": "record", "name": "Order", "fields": [
    {"name": "amount", "type": "double"}, {"name": "city", "type": ["null", "string"], "default": null},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}]}"""


def test_strangers_read_a_run_as_parquet(tmp_path: Path) -> None:
    """DuckDB and pandas read keys and typed values of a run without statelog."""
    schema = parse_value_schema(AVSC, 1)
    values = rows_to_struct([{"amount": 1.5, "city": "Ulm"}, {"amount": 2.0, "tags": ["x"]}, None], schema)
    table = pa.table(
        {"key_group": [0, 1, 2], "op": [0, 0, 1], "key": ["a", "b", "c"], "value": values},
        schema=run_schema(pa.string(), schema.arrow_type),
    )
    with RunWriter(tmp_path / "run.parquet", table.schema, LABEL) as writer:
        writer.append(table)
        writer.finish()

    query = f"select key, value.amount, value.city, value.tags from read_parquet('{tmp_path}/run.parquet') where op = 0"
    answer = duckdb.connect().execute(query).fetchall()
    assert answer == [("a", 1.5, "Ulm", []), ("b", 2.0, None, ["x"])]
    frame = pq.read_table(tmp_path / "run.parquet").to_pandas()
    assert frame["key"].tolist() == ["a", "b", "c"]
    assert frame["value"][0]["city"] == "Ulm"
    assert frame["value"][2] is None


def test_merge_bounds_what_it_loads(store: Store, tmp_path: Path) -> None:
    """One key group larger than many row groups merges in pieces, and the newest change of every key wins."""
    count = 3 * TARGET_ROWS
    keys = pa.array(np.arange(count) * 2)
    schema = run_schema(pa.int64(), pa.int64())

    def table(key: pa.Array, value: int) -> pa.Table:
        zeros = np.zeros(len(key))
        columns = {"key_group": zeros.astype(np.uint16), "op": zeros.astype(np.uint8), "key": key}
        return pa.table({**columns, "value": np.full(len(key), value)}, schema=schema)

    old = write_run(store, tmp_path, [table(keys, 1)])
    new = write_run(store, tmp_path, [table(pa.array(np.arange(0, count, 3)), 2)])
    assert len(old.index.row_groups) == 3
    with (
        RunReader(store.open(old.path), old) as first,
        RunReader(store.open(new.path), new) as second,
        RunWriter(tmp_path / "merged", schema, LABEL) as writer,
    ):
        for piece in merge_streams([tables_of(first), tables_of(second)], drop_deletes=False):
            writer.append(piece)
        rows = writer.finish().file.rows

    merged = pq.ParquetFile(tmp_path / "merged").read()
    key = merged.column("key").to_numpy()
    assert rows == merged.num_rows == len(set(range(0, count * 2, 2)) | set(range(0, count, 3)))
    assert (merged.column("value").to_numpy() == np.where((key % 3 == 0) & (key < count), 2, 1)).all()


def test_what_compresses_well_is_decoded_a_few_row_groups_at_a_time(store: Store, tmp_path: Path) -> None:
    """A lane holds a few decoded row groups, however well a request's bytes compress."""
    tables = [change_table([(group, 0, b"k", bytes(TARGET_BYTES))]) for group in range(40)]
    run = write_run(store, tmp_path, tables)
    assert len(run.index.row_groups) == 40
    assert run.size_bytes < PIECE_BYTES
    before, held = pa.total_allocated_bytes(), list[int]()
    lane = Lane(
        [LanePart(run, range(40), None)],
        stored(store),
        inline,
        lambda it: it.result(),
        most=1,
        most_bytes=PIECE_BYTES,
        most_row_groups=2,
    )
    for part in lane:
        held += [pa.total_allocated_bytes() - before for _ in part]
    lane.close()
    assert len(held) == 40
    assert max(held) < 6 * TARGET_BYTES


def test_a_lane_without_a_start_reads_nothing_ahead(store: Store, tmp_path: Path) -> None:
    """A lane without a thread reads each piece on demand."""
    runs = [write_run(store, tmp_path, [change_table([(group, 0, b"k", b"v")])]) for group in range(6)]
    opened: list[RunFile] = []

    def opening(run: RunFile) -> AbstractContextManager[BinaryIO]:
        opened.append(run)
        return store.open(run.path)

    lane = Lane(
        [LanePart(run, [0], None) for run in runs],
        opening,
        None,
        lambda it: it.result(),
        most=9,
        most_bytes=PIECE_BYTES,
        most_row_groups=2,
    )
    for number, tables in enumerate(lane):
        assert opened == runs[:number]
        assert [table.num_rows for table in tables] == [1]
    assert lane.close() == []
    assert opened == runs


def test_a_run_that_one_request_holds_is_read_by_one(store: Store, tmp_path: Path) -> None:
    """A run within one request is read at once, footer included.

    Pieces of a larger one are requested together with its footer.
    """
    tables = [change_table([(group, 0, b"%d" % number, b"v") for number in range(50)]) for group in range(9)]
    run = write_run(store, tmp_path, tables, target_rows=50)
    assert len(run.index.row_groups) == 9
    asked, footer_may_come = list[int](), Event()

    def fetch(start: int, end: int | None) -> bytes:
        asked.append(start)
        assert start != run.index.footer_offset or footer_may_come.wait(60)
        return store.read(run.path)[start:end]

    def opening(_: RunFile) -> AbstractContextManager[BinaryIO]:
        return cast("BinaryIO", RangeReader(fetch, lambda: run.size_bytes))

    whole = RunHandles(run, opening)
    assert sum(table.num_rows for table in whole.row_groups(range(9), None)) == 450
    assert asked == [run.index.row_groups[0].offset]
    asked.clear()
    parts = RunHandles(run, opening)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(parts.row_groups, [0], None)
        wait_for(lambda: asked == [run.index.footer_offset])
        second = threads.submit(parts.row_groups, [1], None)
        wait_for(lambda: run.index.row_groups[1].offset in asked)
        footer_may_come.set()
        assert [one.result()[0].num_rows for one in (first, second)] == [50, 50]
    assert len(asked) == 3
