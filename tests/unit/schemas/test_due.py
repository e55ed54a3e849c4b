"""Dues: times as callers give them, the column of changes, and the chunks and commits that have it."""

import math
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from statelog.errors import CorruptChunk, CorruptLedger, InvalidChange, UnknownFormat
from statelog.producer.change_set import carried_of
from statelog.schemas.changes.changes import DELETE, PUT, change_schema, changes_batch, merge_tables
from statelog.schemas.changes.chunk import VerifiedChunks, decode_batches, decode_head
from statelog.schemas.changes.due import (
    DUE,
    DUE_MS_MAX,
    aligned,
    due_ms_of,
    due_numbers,
    has_due,
    only_used,
    with_due,
    without_due,
)
from statelog.schemas.changes.few import FewChanges
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger import records
from statelog.schemas.ledger.records import Commit, Commits
from tests.support.samples.chunks import chunk_of, rows_batch
from tests.support.samples.format_examples import EXAMPLES

SCHEMA = change_schema(KeyType.BYTES)
ROWS = [(4, PUT, b"a", b"1"), (4, DELETE, b"b", None), (9, PUT, b"c", b"")]
TIMED = rows_batch(ROWS, dues=[1500, None, 7])
PLAIN = rows_batch(ROWS)


def decoded(*values: bytes) -> pa.RecordBatch:
    """Return the changes of chunks."""
    chunks = VerifiedChunks()
    for value in values:
        found = decode_head(value)
        assert found is not None
        chunks.add(value, *found)
    return decode_batches(chunks, SCHEMA)


# ---- times


@pytest.mark.parametrize(
    ("due", "due_ms"),
    [
        (0, 0),
        (1_700_000_000, 1_700_000_000_000),
        (1.5, 1500),
        (1.0001, 1001),
        (1_700_000_000.0001, 1_700_000_000_001),
        (0.1 + 0.2, 300),
        (datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), 1001),
        (datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2))), 1_893_448_800_000),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), DUE_MS_MAX - 999),
    ],
)
def test_a_time_in_milliseconds(due: Any, due_ms: int) -> None:
    """A time is rounded up to milliseconds, but not for what a float cannot hold."""
    assert due_ms_of(due) == due_ms


@pytest.mark.parametrize(
    "due",
    [
        math.nan, math.inf, -math.inf, -0.001, 1e300, 10**400, True, "2030-01-01", b"1", None, (), timedelta(1),
        datetime(2030, 1, 1), 253_402_300_800,  # noqa: DTZ001 - without a zone, which is refused
    ],
)  # fmt: skip
def test_what_is_no_time(due: Any) -> None:
    """A time without a zone, outside of the years 1970 to 9999, or of another type is refused with the value."""
    with pytest.raises(InvalidChange, match="is refused"):
        due_ms_of(due)


@pytest.mark.parametrize(
    ("unit", "number", "due_ms"),
    [("s", 3, 3000), ("ms", 3, 3), ("us", 3000, 3), ("us", 3001, 4), ("ns", 3_000_000, 3), ("ns", 3_000_001, 4)],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "+05:00"])
def test_a_column_of_any_unit(unit: str, number: int, due_ms: int, zone: str) -> None:
    """A column of times with a zone is rounded up to milliseconds, and nulls stay nulls."""
    column = pa.array([9, number, None], pa.int64()).view(pa.timestamp(unit, tz=zone)).slice(1)
    numbers, is_null = due_numbers(column)
    assert numbers.tolist() == [due_ms, 0]
    assert is_null.tolist() == [False, True]


def test_a_column_of_nulls_and_of_categories() -> None:
    """A column of nulls has no due, and categories are those of their values."""
    assert due_numbers(pa.nulls(2))[1].tolist() == [True, True]
    times = pa.array([5, None, 5], DUE.type)
    assert due_numbers(times.dictionary_encode())[0].tolist() == [5, 0, 5]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1]),
        pa.array([1.0]),
        pa.array(["2030-01-01T00:00:00Z"]),
        pa.array([1], pa.timestamp("ms")),
        pa.array([1], pa.date32()),
        pa.array([1], pa.time64("us")),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_of_another_type(column: pa.Array) -> None:
    """A column without a zone, or of other types than times, is refused by its type: a number has no unit."""
    with pytest.raises(InvalidChange, match="column `due` is") as caught:
        due_numbers(column)
    assert str(column.type) in caught.value.message


@pytest.mark.parametrize(
    ("unit", "number"),
    [("s", -1), ("s", DUE_MS_MAX // 1000 + 1), ("s", (1 << 63) - 1), ("ms", DUE_MS_MAX + 1), ("us", -1), ("ns", -1)],
)
def test_a_column_outside_of_its_years(unit: str, number: int) -> None:
    """A row outside of the years 1970 to 9999 is refused with its number."""
    column = pa.array([1, number], pa.int64()).view(pa.timestamp(unit, tz="UTC"))
    with pytest.raises(InvalidChange, match="1970 to 9999") as caught:
        due_numbers(column)
    assert caught.value.facts["row"] == 1


# ---- the column


def test_a_schema_with_and_without() -> None:
    """The column is the last one, and is added once."""
    assert with_due(SCHEMA).names == [*SCHEMA.names, "due"]
    assert with_due(with_due(SCHEMA)) == with_due(SCHEMA)
    assert without_due(with_due(SCHEMA)) == SCHEMA == without_due(SCHEMA)


def test_batches_are_aligned() -> None:
    """Batches of which one has dues all have the column; others stay as they are."""
    both = [PLAIN, PLAIN]
    assert aligned(both) is both
    filled, same = aligned([PLAIN, TIMED])
    assert same is TIMED
    assert filled.schema == TIMED.schema
    assert filled.column(4).null_count == 3


def test_a_column_that_no_row_uses_is_left_out() -> None:
    """A part of changes whose rows have no due has no column; one whose rows have it keeps it."""
    assert only_used(TIMED.slice(1, 1)).equals(PLAIN.slice(1, 1))
    assert only_used(TIMED) is TIMED
    assert only_used(PLAIN) is PLAIN


@pytest.mark.parametrize(("op", "value", "due_ms"), [(DELETE, None, 5), (PUT, b"v", -1), (PUT, b"v", DUE_MS_MAX + 1)])
def test_changes_that_may_not_have_the_due(op: int, value: bytes | None, due_ms: int) -> None:
    """A delete with a due, and a due outside of its years, are no changes."""
    groups, ops, keys, values = rows_batch([(1, op, b"k", value)]).columns
    dues = pa.array([due_ms], pa.int64()).view(DUE.type)
    with pytest.raises(InvalidChange, match="due"):
        changes_batch(SCHEMA, groups.to_numpy(), ops.to_numpy(), keys, values, dues)


def test_merged_tables_with_and_without() -> None:
    """The newest change of a key decides its due: one without clears it, whether its table has the column or not."""
    older = pa.Table.from_batches([rows_batch([(1, PUT, b"a", b"1"), (1, PUT, b"b", b"1")], dues=[5, 6])])
    newer = pa.Table.from_batches([rows_batch([(1, PUT, b"b", b"2"), (1, PUT, b"c", b"2")])])
    merged = merge_tables([older, newer], drop_deletes=False)
    assert merged.column("due").cast(pa.int64()).to_pylist() == [5, None, None]
    swapped = merge_tables([newer, older], drop_deletes=False)
    assert swapped.column("due").cast(pa.int64()).to_pylist() == [5, 6, None]


# ---- chunks


def test_a_chunk_with_dues_is_of_version_3() -> None:
    """A chunk with dues has version 3, and comes back with them; one without has version 2, as before."""
    with_dues, plain = chunk_of(TIMED).value, chunk_of(PLAIN).value
    assert (with_dues[4], plain[4]) == (3, 2)
    assert decoded(with_dues).equals(TIMED)
    assert decoded(plain).equals(PLAIN)


def test_chunks_with_and_without_come_out_together() -> None:
    """Chunks of both versions that are decoded together all have the column."""
    found = decoded(chunk_of(PLAIN).value, chunk_of(TIMED).value)
    assert found.column("due").cast(pa.int64()).to_pylist() == [None, None, None, 1500, None, 7]


@pytest.mark.parametrize("batch", [PLAIN, TIMED], ids=["plain", "timed"])
def test_another_version_is_noticed(batch: pa.RecordBatch) -> None:
    """The version is under the checksum, so that a changed one drops no due, and invents none."""
    value = bytearray(chunk_of(batch).value)
    value[4] ^= 1
    with pytest.raises(CorruptChunk, match="checksum"):
        decode_head(bytes(value))


@pytest.mark.parametrize(
    ("rows", "dues"),
    [
        ([(1, DELETE, b"k", None)], [5]),
        ([(1, PUT, b"k", b"v")], [-1]),
        ([(1, PUT, b"k", b"v")], [DUE_MS_MAX + 1]),
    ],
)
def test_a_chunk_with_an_impossible_due(rows: list[Any], dues: list[int]) -> None:
    """A delete with a due, and a due outside of its years, are corrupt."""
    batch = rows_batch(rows, dues=dues)
    with pytest.raises(CorruptChunk, match="due"):
        decoded(chunk_of(batch).value)


def test_few_changes_by_partition_keep_their_dues() -> None:
    """Few changes that are split by partition keep their dues, and a part without any is as if none had one."""
    few = FewChanges.placed([3, 0, 0], [b"c", b"a", b"b"], [b"1", b"2", None], [7, None, None])
    parts = few.split(2, 4)
    assert parts == [
        (0, FewChanges([0, 0], [b"a", b"b"], [b"2", None])),
        (1, FewChanges([3], [b"c"], [b"1"], [7])),
    ]


# ---- commits


def _commit(batch: pa.RecordBatch) -> Commit:
    inline, data = carried_of(batch, EXAMPLES["descriptor"].value, 0)  # type: ignore[arg-type]  # an example is of any type
    made: Commit = EXAMPLES["inline-commit"].value  # type: ignore[assignment]  # the same
    return replace(made, inline=inline, batch=data)


def test_a_commit_that_carries_dues_is_of_version_4() -> None:
    """A commit whose changes have dues has version 4, and one without version 3, as before."""
    timed, plain = _commit(TIMED), _commit(PLAIN)
    values = [records.encode(one) for one in (timed, plain)]
    assert [value[4] for value in values] == [4, 3]
    for value, commit in zip(values, (timed, plain), strict=True):
        found = records.decode(value)
        assert found == commit
        assert isinstance(found, Commit)
        assert found.inline is not None
        assert value[found.batch_start :] == commit.batch
        assert found.inline.has_due is (commit is timed)


def test_several_commits_of_which_one_carries_dues() -> None:
    """A record of several commits is of version 2 if one of them has dues, and an older program stops at it."""
    mixed, plain = Commits((_commit(PLAIN), _commit(TIMED))), Commits((_commit(PLAIN),))
    assert [records.encode(one)[4] for one in (mixed, plain)] == [2, 1]
    assert records.decode(records.encode(mixed)) == mixed


@pytest.mark.parametrize(("flags", "error"), [(0, CorruptLedger), (9, UnknownFormat), (0x8000, UnknownFormat)])
def test_flags_of_a_commit(flags: int, error: type[Exception]) -> None:
    """A commit of version 4 with a flag that is not known stops the reader; without any it is corrupt."""
    value = records.encode(_commit(TIMED))
    at = value.index(struct.pack("<HHHH", 4, 9, 1, 1)) + 6
    payload = value[16:at] + struct.pack("<H", flags) + value[at + 2 :]
    prefix = value[:8]
    checksum = xxhash.xxh3_64_intdigest(b"\0\0" + payload, seed=4 << 8 | 2)
    with pytest.raises(error):
        records.decode(prefix + struct.pack("<Q", checksum) + payload)


def test_has_due() -> None:
    """Tables and batches tell whether they have the column."""
    assert has_due(TIMED)
    assert has_due(pa.Table.from_batches([TIMED]))
    assert not has_due(PLAIN)
