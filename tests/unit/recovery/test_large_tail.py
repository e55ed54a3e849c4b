"""A tail of large values may exceed an Arrow array, and is copied as little as possible."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import InvalidChange
from statelog.producer.writer import Writer
from statelog.reading.sorted_tail import MemoryTail, newest
from statelog.recovery.recover import recover
from statelog.schemas.arrays import gathered
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.key_order import is_last_row
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema, rows_to_struct
from tests.support.rigs.history import history_rig

_AVSC = """{"type": "record", "name": "V", "fields": [{"name": "t", "type": "string"}, {"name": "n", "type": "int"}]}"""
_MIB = 1 << 20
_VALUES = pa.array(["x" * _MIB] * 64)
"""All tables share them, so that gigabytes of text take 64 MiB."""


def _table(number: int, values: pa.Array = _VALUES) -> pa.Table:
    numbers = np.arange(64, dtype=np.int32) + 64 * number
    value = pa.StructArray.from_arrays([values, pa.array(numbers)], ["t", "n"])
    keys = pa.array([b"%06d" % one for one in numbers])
    groups, ops = pa.array(np.zeros(64, np.uint16)), pa.array(np.zeros(64, np.uint8))
    schema = change_schema(KeyType.BYTES, parse_value_schema(_AVSC, 1).arrow_type)
    return pa.table([groups, ops, keys, value], schema=schema)


def test_rows_of_more_text_than_an_array_holds_are_not_joined() -> None:
    """Rows with 2.5 GiB of text in one key group are not joined, however few they are."""
    tables = [_table(number) for number in range(40)]
    before = pa.total_allocated_bytes()
    kept = newest([*tables, _table(0)], keep_deletes=False)
    assert pa.total_allocated_bytes() - before < 16 * _MIB
    assert sum(table.num_rows for table in kept) == 40 * 64
    assert sum(table.nbytes for table in kept) > 1 << 31


def test_keys_of_one_key_group_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of one key group are compared in parts that fit an array."""
    compared: list[int] = []

    def counted(groups: pa.Array, keys: pa.Array) -> Any:
        compared.append(keys.nbytes)
        return is_last_row(groups, keys)

    monkeypatch.setattr("statelog.reading.sorted_tail.is_last_row", counted)
    tables = [_table(number % 20, pa.array(["x"] * 64)) for number in range(40)]
    kept = newest(tables, keep_deletes=True, max_key_bytes=4_000)
    keys = sorted(key for table in kept for key in table.column("key").to_pylist())
    assert keys == [b"%06d" % number for number in range(20 * 64)]
    assert max(compared) <= 4_000


def test_rows_of_a_table_that_is_too_large_to_join() -> None:
    """Rows of a table that is too large to join are taken in any order, also repeatedly. Arrow's own call fails."""
    table = pa.concat_tables([_table(number) for number in range(40)])
    wanted = np.array([2559, 0, 64, 2559, 63, 1300], np.int64)
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        table.take(pa.array(wanted))
    found = gathered(table, wanted)
    assert found.column("key").to_pylist() == [b"%06d" % number for number in wanted]
    assert found.schema == table.schema
    in_parts = gathered(table, wanted, most_bytes=3 * _MIB)
    assert in_parts.column("key").to_pylist() == found.column("key").to_pylist()
    assert gathered(table, wanted[:0]).num_rows == 0


@pytest.mark.soak
def test_a_dictionary_that_stands_for_more_than_an_array_holds_is_refused() -> None:
    """A dictionary whose expanded text exceeds an array is refused by the writer: 2,200 times a megabyte."""
    rig = history_rig(key_groups=1, partitions=1, value_schema=_AVSC)
    text: pa.Array = cast("Any", pa.DictionaryArray).from_arrays(
        pa.array(np.zeros(2200, np.int32)), pa.array(["x" * _MIB])
    )
    rows = pa.table(
        {"key": pa.array([b"%d" % one for one in range(2200)]), "t": text, "n": pa.array(np.zeros(2200, np.int32))}
    )
    with Writer(rig.log, "w") as writer:
        with pytest.raises(InvalidChange, match="more than 2 GiB") as refused:
            writer.append_batch(rows)
        assert refused.value.facts["field"] == "value.t"
        writer.append_batch(rows.slice(0, 3))
        writer.commit()
    assert recover(rig.log).to_arrow().num_rows == 3


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Return an Arrow memory pool for this test alone: the usual one's maximum covers the whole process."""
    arrow: Any = pa  # Its stubs lack them.
    usual = pa.default_memory_pool()
    arrow.set_memory_pool(counted := arrow.proxy_memory_pool(usual))
    yield counted
    arrow.set_memory_pool(usual)


def test_large_rows_are_sorted_a_few_at_a_time(pool: pa.MemoryPool) -> None:
    """Sorting large rows holds the rows and their sorted copy, and no third copy."""
    tail, texts = MemoryTail(fold_bytes=1 << 30), np.random.default_rng(7)
    for number in range(96):
        text = pa.array([texts.bytes(_MIB).hex()])
        value = pa.StructArray.from_arrays([text, pa.array([number], pa.int32())], ["t", "n"])
        columns = [
            pa.array([0], pa.uint16()),
            pa.array([0], pa.uint8()),
            pa.array([b"%06d" % (number * 59 % 96)]),
            value,
        ]
        tail.add(0, pa.RecordBatch.from_arrays(columns, ["key_group", "op", "key", "value"]))
        del text, value, columns
    held = pool.bytes_allocated()
    assert held > 96 * 2 * _MIB
    found = tail.sorted(0)
    keys = [key for table in found for key in table.column("key").to_pylist()]
    assert keys == [b"%06d" % number for number in range(96)]
    assert (pool.max_memory() or 0) < held * 2.2


@pytest.mark.soak
@pytest.mark.parametrize("is_behind", [False, True], ids=["tail", "behind a snapshot"])
def test_two_gigabytes_of_text_in_the_tail(is_behind: bool) -> None:
    """Every in-memory target holds two gigabytes of text in one key group, with and without a snapshot."""
    rig = history_rig(key_groups=1, partitions=1, value_schema=_AVSC)
    with Writer(rig.log, "w") as writer:
        if is_behind:
            rig.commit(writer, 1, [(b"old", {"t": "", "n": 1})])
            rig.snapshot()
        for number in range(2200):
            writer.put(b"%06d" % number, {"t": f"{number:06}" + "x" * _MIB, "n": number})
            if number % 100 == 99:
                writer.commit()
    rows = 2200 + is_behind
    table = recover(rig.log).to_arrow()
    assert (table.num_rows, table.nbytes > 1 << 31) == (rows, True)
    del table
    assert recover(rig.log).digest().rows == rows
    with pytest.raises(InvalidChange, match="more than 2 GiB"):
        rows_to_struct([{"t": "x" * _MIB, "n": 1}] * 2200, parse_value_schema(_AVSC, 1))
    state = recover(rig.log).to_dict()
    assert len(state) == rows
    assert all(state[b"%06d" % number]["t"].startswith(f"{number:06}x") for number in range(2200))
