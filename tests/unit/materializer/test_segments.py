"""The memory of a fold: what is loaded and merged at once stays within its limit, whatever the size of the values.

With limits scaled down by a thousand: 64 KiB instead of 64 MiB, and values up to a quarter of that.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statelog.materializer.engine import segments as module
from statelog.materializer.engine.segments import Segments
from statelog.schemas.changes.changes import cut_by_bytes, merge_tables
from statelog.storage.runs.merge import merge_streams

FOLD_BYTES = 64 << 10


def _table(keys: list[int], value_bytes: int, mark: int) -> pa.Table:
    return pa.table(
        {
            "key_group": pa.array(np.zeros(len(keys), np.uint16)),
            "op": pa.array(np.zeros(len(keys), np.uint8)),
            "key": pa.array([b"%08d" % key for key in keys], pa.binary()),
            "value": pa.array([b"%03d" % mark + bytes(value_bytes - 3) for _ in keys], pa.binary()),
        }
    )


@pytest.mark.parametrize("value_bytes", [3, 200, 2 << 10, 16 << 10])
@pytest.mark.parametrize("count", [3, 40])
def test_a_merge_holds_half_of_the_limit_whatever_the_values(
    value_bytes: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments as large as the limit, forty times: no step takes more than half of it, and the newest change wins."""
    largest = [0]

    def measured(tables: list[pa.Table], *, drop_deletes: bool) -> pa.Table:
        largest[0] = max(largest[0], sum(table.nbytes for table in tables))
        return merge_tables(tables, drop_deletes=drop_deletes)

    monkeypatch.setattr("statelog.storage.runs.merge.merge_tables", measured)
    rows = max(2, min(FOLD_BYTES // value_bytes, 400))
    random = np.random.default_rng(1)
    newest: dict[bytes, bytes] = {}
    with Segments(tmp_path, FOLD_BYTES) as segments:
        for turn in range(count):
            table = _table(sorted(random.choice(5 * rows, rows, replace=False)), value_bytes, turn)
            newest.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
            segments.add(table)
        assert len(list(tmp_path.iterdir())) == len(segments) <= 32
        last = _table([1, 2, 3], value_bytes, 999)
        newest.update(zip(last.column("key").to_pylist(), last.column("value").to_pylist(), strict=True))
        merged = pa.concat_tables(list(segments.merged([last])))
    assert merged.column("key").to_pylist() == sorted(newest)
    assert merged.column("value").to_pylist() == [newest[key] for key in sorted(newest)]
    assert largest[0] <= max(FOLD_BYTES * 5 // 8, 3 * (value_bytes + 30))  # or a row of each of three
    assert not list(tmp_path.iterdir())


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is folded: a hundred segments never mean a hundred open files."""
    read, now_open, most = module._read, [0], [0]  # pyright: ignore[reportPrivateUsage] # what opens them

    def counted(path: Path) -> Iterator[pa.Table]:
        now_open[0] += 1
        most[0] = max(most[0], now_open[0])
        try:
            yield from read(path)
        finally:
            now_open[0] -= 1

    monkeypatch.setattr(module, "_read", counted)
    with Segments(tmp_path, FOLD_BYTES) as segments:
        for turn in range(100):
            segments.add(_table([turn, 1000], 10, turn))
        assert sum(table.num_rows for table in segments.merged([])) == 101
    assert (now_open[0], most[0]) == (0, 16)


def test_a_step_of_a_merge_takes_no_more_than_it_may() -> None:
    """Tables of 64 KiB each, forty of them: a limit of 200 KB cuts what is taken, down to one row of each stream."""
    tables = [_table(list(range(turn, 40 * 64, 40)), 1 << 10, turn) for turn in range(40)]
    pieces = list(merge_streams([[table] for table in tables], drop_deletes=False, most_bytes=200_000))
    assert max(piece.nbytes for piece in pieces) <= 200_000
    assert pa.concat_tables(pieces).column("key").to_pylist() == [b"%08d" % key for key in range(40 * 64)]


def test_cutting_by_bytes_keeps_the_order_and_ends_at_one_row() -> None:
    """Rows of very different sizes: every slice is within the limit, or a single row."""
    table = pa.concat_tables([_table([1, 2], 10, 1), _table([3], 5000, 2), _table(list(range(4, 40)), 100, 3)])
    pieces = list(cut_by_bytes(table, 1000))
    assert pa.concat_tables(pieces).equals(table)
    assert all(piece.nbytes <= 1000 or piece.num_rows == 1 for piece in pieces)
