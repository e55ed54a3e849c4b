"""The change buffer refuses bad changes on every path, and hands out bounded pieces."""

import os
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import InvalidChange, ValueTooLarge
from statelog.producer.buffer import ChangeBuffer
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.schemas.changes.changes import change_schema, row_sizes
from statelog.schemas.changes.few import FEW_BYTES, ROW_BYTES, FewChanges
from statelog.schemas.key_groups import KeyType
from tests.support.rigs.log import twin_rig

TEXT = '{"type": "record", "name": "V", "fields": [{"name": "s", "type": "string"}]}'
BYTES = '{"type": "record", "name": "V", "fields": [{"name": "b", "type": "bytes"}]}'
NESTED = """{"type": "record", "name": "V", "fields": [{"name": "m", "type": {"type": "map", "values": "string"}},
    {"name": "a", "type": {"type": "array", "items": "bytes"}, "default": []}]}"""
MAX_CHANGE_BYTES = 15 << 20
OVERHEAD = 2 + 1 + 4 + 4  # key group, op, and an offset each for key and value


def _buffer(*, key_type: KeyType = KeyType.BYTES, value_schema: str | None = None, **tuned: Any) -> ChangeBuffer:
    """Return the buffer of a writer that owns all partitions."""
    with twin_rig("b").create(key_type=key_type, value_schema=value_schema) as log, Writer(log, "w") as writer:
        grant = writer.grant
    return ChangeBuffer(
        grant.descriptor, grant.value_schema, grant.partitions, WriterSettings(_tuning=WriterTuning(**tuned))
    )


def _extend(buffer: ChangeBuffer, columns: dict[str, Any]) -> None:
    assert not any(buffer.extend(pa.table(columns)))


@pytest.mark.parametrize("way", ["put", "batch"])
@pytest.mark.parametrize("excess", [-9, -1, 0, 1, 2])
def test_one_limit_for_every_way_in(way: str, excess: int) -> None:
    """A change is measured by its key, its value and a few bytes. Up to the limit it is buffered, above it refused."""
    buffer = _buffer()
    buffer.put(b"a", b"b")
    value = bytes(MAX_CHANGE_BYTES - OVERHEAD - 1 + excess)
    try:
        if way == "put":
            buffer.put(b"k", value)
        else:
            list(buffer.extend(pa.table({"key": [b"k"], "value": [value]})))
    except ValueTooLarge:
        assert excess > 0
        assert buffer.changes == 1
    else:
        assert excess <= 0
        assert buffer.changes == 2
    changes = buffer.take()
    if isinstance(changes, FewChanges):
        assert excess > 0 and changes == ([changes.groups[0]], [b"a"], [b"b"], None)
        return
    assert changes is not None
    assert sum(int(row_sizes(column)[-1]) for column in changes.columns) <= MAX_CHANGE_BYTES


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"key_type": KeyType.STRING}, "€" * (6 << 20), b""),
        ({"value_schema": TEXT}, b"k", {"s": "€" * (6 << 20)}),
        ({"value_schema": BYTES}, b"k", {"b": bytearray(16 << 20)}),
        ({"value_schema": NESTED}, b"k", {"m": MappingProxyType({"y": "€" * (6 << 20)})}),
    ],
    ids=["key", "value", "bytearray", "mapping"],
)
def test_what_no_chunk_holds_is_refused_at_once(options: dict[str, Any], key: Any, value: Any) -> None:
    """A change that no chunk can hold is refused at once, measured in bytes: six million euro signs are 18 MiB."""
    buffer = _buffer(**options)
    with pytest.raises(ValueTooLarge):
        buffer.put(key, value)
    assert buffer.changes == 0
    assert buffer.take() is None


def test_a_key_without_bytes_is_refused_at_once() -> None:
    """A key with a lone surrogate, which has no UTF-8, is refused at once. Good keys around it are not blamed."""
    buffer = _buffer(key_type=KeyType.STRING, roll_rows=2)
    buffer.put("good", b"1")
    with pytest.raises(InvalidChange, match="Unicode"):
        buffer.put("\ud800", b"bad")
    for key in "abc":
        buffer.put(key, b"1")
    assert buffer.changes == 4


def test_a_typed_value_that_does_not_fit_is_named() -> None:
    """A bad typed value is found when the lists become Arrow.

    The error names its key, and the current change is not buffered.
    """
    buffer = _buffer(value_schema=TEXT, roll_rows=3)
    buffer.put(b"good", {"s": "a"})
    buffer.put(b"culprit", {"s": 7})
    for _ in range(2):
        with pytest.raises(InvalidChange, match="culprit"):
            buffer.put(b"innocent", {"s": "a"})
        assert buffer.changes == 2


@pytest.mark.parametrize(
    "op",
    [
        pa.array(["put", "delete"]).dictionary_encode(),
        pa.array(["put", "delete"]).cast(pa.string_view()),
        pa.array(["put", "delete"]).cast(pa.large_string()),
        pa.array([0, 1], pa.int8()).dictionary_encode(),
    ],
    ids=str,
)
def test_ops_of_any_text(op: pa.Array) -> None:
    """Ops may be categories, views and large texts, as pandas, Spark and Polars make them."""
    buffer = _buffer()
    _extend(buffer, {"key": [b"a", b"b"], "value": [b"1", b"2"], "op": op})
    changes = buffer.take()
    assert isinstance(changes, pa.RecordBatch)
    assert changes.column(1).to_pylist() == [0, 1]


def test_columns_that_nobody_reads_are_refused() -> None:
    """Unknown columns are refused: a misspelt `op` would turn every delete into a put."""
    buffer = _buffer()
    with pytest.raises(InvalidChange, match="operation"):
        _extend(buffer, {"key": [b"a"], "value": [b"1"], "operation": ["delete"]})
    assert buffer.changes == 0


def test_two_columns_of_one_name_are_refused() -> None:
    """Two columns of one name are refused as ambiguous."""
    key = pa.array([b"a"])
    with pytest.raises(InvalidChange, match="two columns"):
        list(_buffer().extend(pa.RecordBatch.from_arrays([key, key, key], ["key", "value", "key"])))


def test_a_refused_row_anywhere_refuses_the_whole_table() -> None:
    """A table is buffered only after all of it was checked, so one bad row refuses all."""
    buffer = _buffer(roll_bytes=1000)
    values = [*[bytes(100)] * 99, bytes(16 << 20)]
    with pytest.raises(ValueTooLarge):
        list(buffer.extend(pa.table({"key": [b"%d" % i for i in range(100)], "value": values})))
    assert buffer.changes == 0


def test_a_table_is_taken_as_it_fills() -> None:
    """A large table is taken in row order, in pieces of about the threshold."""
    buffer = _buffer(roll_bytes=10_000)
    keys = [b"%d" % i for i in range(5_000)]
    taken: list[Any] = []
    for is_full in buffer.extend(pa.table({"key": keys, "value": [bytes(90)] * 5_000})):
        changes = buffer.take() if is_full else None
        taken += [changes] if changes is not None else []
    rest = buffer.take()
    taken += [rest] if rest is not None else []
    assert [key for changes in taken for key in changes.column(2).to_pylist()] == keys
    assert max(changes.nbytes for changes in taken) < 25_000
    assert taken[0].schema == change_schema(KeyType.BYTES)


def test_pieces_of_a_table_are_taken_alone() -> None:
    """No piece exceeds the threshold, and none waits to be copied together with the next one."""
    buffer = _buffer(roll_bytes=100_000)
    table = pa.table({"key": [b"%d" % i for i in range(1_500)], "value": [bytes(90)] * 1_500})
    sizes: list[int] = []
    for is_full in buffer.extend(table):
        changes = buffer.take() if is_full else None
        assert changes is not None
        sizes.append(changes.nbytes)
    assert len(sizes) == 2
    assert max(sizes) < 100_000


def test_more_than_one_array_can_hold() -> None:
    """A table of 2.5 GiB, most of whose memory is shared here, passes without being concatenated."""
    buffer = _buffer()
    values = pa.array([os.urandom(1 << 16)] * 1024)
    batch = pa.record_batch({"key": [b"%d" % i for i in range(1024)], "value": values})
    rows = 0
    for is_full in buffer.extend(pa.Table.from_batches([batch] * 40)):
        changes = buffer.take() if is_full else None
        rows += changes.num_rows if changes is not None else 0
    rest = buffer.take()
    assert rows + (rest.num_rows if rest is not None else 0) == 40 * 1024


def test_large_values_that_lie_together() -> None:
    """Pieces are cut by actual bytes, so a cluster of large values does not overflow an array."""
    buffer = _buffer(roll_bytes=1 << 20)
    values = [*[b""] * 50_000, *[bytes(14 << 20)] * 10]
    sizes: list[int] = []
    for is_full in buffer.extend(pa.table({"key": [b"%d" % i for i in range(len(values))], "value": values})):
        changes = buffer.take() if is_full else None
        sizes += [changes.nbytes] if changes is not None else []
    assert max(sizes) < 80 << 20


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("chunk_bytes", [FEW_BYTES - 5000, 2 * FEW_BYTES])
def test_few_fit_in_a_chunk(chunk_bytes: int, excess: int) -> None:
    """Few changes stay as lists up to a size that counts all of their bytes, and become Arrow above it."""
    buffer = _buffer(chunk_bytes=chunk_bytes)
    size = min(chunk_bytes, FEW_BYTES) - 2 * ROW_BYTES
    buffer.put(b"k", bytes(1000))
    buffer.put(b"l", bytes(size - 1002 + excess))
    changes = buffer.take()
    assert changes is not None
    assert changes.num_rows == 2
    assert isinstance(changes, FewChanges) is (excess == 0)
    assert not isinstance(changes, FewChanges) or changes.nbytes == min(chunk_bytes, FEW_BYTES)
    assert buffer.take() is None


@pytest.mark.parametrize(("rows", "size_bytes", "most"), [(3, 0, 3), (20_000, 4096, 512), (7, 1 << 19, 4)])
def test_lists_hold_so_many_changes(rows: int, size_bytes: int, most: int) -> None:
    """The lists become Arrow with the change that reaches the row limit or 2 MiB."""
    buffer = _buffer(roll_rows=rows)
    for _ in range(most - 1):
        buffer.put(b"key", bytes(size_bytes))
    assert len(buffer.lists.keys) == most - 1
    buffer.put(b"key", bytes(size_bytes))
    assert not buffer.lists.keys
    assert buffer.changes == most


def test_a_value_that_is_changed_behind_its_put_is_the_one_that_was_put() -> None:
    """A later change to a dict, bytearray or list does not change the value that was put."""
    names, items, data = {"x": "1"}, [b"1"], bytearray(b"1")
    value: dict[str, Any] = {"m": names, "a": [*items, data]}
    buffer = _buffer(value_schema=NESTED)
    for number in (1, 2):
        names["x"] = str(number)
        data[:] = value["a"][0] = b"%d" % number
        buffer.put(b"k", value)
    value["m"] = {}
    assert _values(buffer) == [{"m": [("x", str(n))], "a": [b"%d" % n, b"%d" % n]} for n in (1, 2)]


def _values(buffer: ChangeBuffer) -> list[Any]:
    changes = buffer.take()
    assert isinstance(changes, pa.RecordBatch)
    return changes.column("value").to_pylist()
