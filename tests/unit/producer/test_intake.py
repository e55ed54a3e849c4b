"""`append_batch` validates its rows down to the last cell, and copies the memory that it retains."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import statelog
from statelog.errors import InvalidChange
from statelog.producer import Coordinator, TaskWriter
from statelog.producer.change_writer import ChangeWriter
from statelog.producer.intake import copied, take_in
from statelog.producer.settings import WriterTuning
from statelog.producer.writer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import twin_rig

ARROW: Any = pa
"""PyArrow with what its stubs lack."""
LATIN = b"caf\xe9"
FAR = 1 << 30
PARTS = {
    "text": "string",
    "raw": "bytes",
    "many": {"type": "array", "items": "string"},
    "named": {"type": "map", "values": "string"},
    "inner": {"type": "record", "name": "Inner", "fields": [{"name": "label", "type": ["null", "string"]}]},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    "at": {"type": "long", "logicalType": "time-micros"},
}
ONE = {
    "text": "t", "raw": b"r", "many": ["m"], "named": {"n": "v"}, "inner": {"label": "l"}, "price": None, "at": None,
}  # fmt: skip


def _schema(*names: str) -> str:
    fields = [{"name": name, "type": ["null", PARTS[name]], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "V", "fields": fields})


def _text(*rows: bytes, kind: pa.DataType | None = None) -> pa.Array:
    """Return text without validation, as Spark's `cast(binary as string)` makes it."""
    raw = pa.array(rows, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind or pa.string(), len(raw), raw.buffers())


def _ends(*ends: int) -> pa.Buffer:
    return pa.py_buffer(np.array(ends, np.int32).tobytes())


def _dictionary(indices: list[int], values: pa.Array) -> pa.Array:
    made: pa.Array = ARROW.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values, safe=False)
    return made


def _view(row: bytes) -> pa.Array:
    """Return one short text as a view."""
    return pa.Array.from_buffers(
        pa.string_view(), 2, [None, pa.py_buffer(_viewed(b"ok") + _viewed(row)), pa.py_buffer(b"")]
    )


def _viewed(row: bytes) -> bytes:
    return len(row).to_bytes(4, "little") + row.ljust(12, b"\0")


def _far_view() -> pa.Array:
    """Return a view of bytes that are in no buffer."""
    view = np.array([20, 0, 0, FAR], np.int32).tobytes()
    return pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(_viewed(b"ok") + view), pa.py_buffer(b"")])


def _map(ends: pa.Buffer, keys: pa.Array, values: pa.Array) -> pa.Array:
    entries = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.Array.from_buffers(pa.map_(pa.string(), pa.string()), 2, [None, ends], children=[entries])


OK = pa.array(["a", "b"])
BAD = _text(b"ok", LATIN)
UNSOUND: dict[str, tuple[str, Callable[[], pa.Array], str]] = {
    "text": ("text", lambda: BAD, "value.text"),
    "large text": ("text", lambda: _text(b"ok", LATIN, kind=pa.large_string()), "value.text"),
    "a view": ("text", lambda: _view(LATIN), "value.text"),
    "a view of nothing": ("text", _far_view, "value.text"),
    "a dictionary": ("text", lambda: _dictionary([0, 1], BAD), "value.text"),
    "an index past its dictionary": ("text", lambda: _dictionary([0, FAR], OK), "value.text"),
    "an index below zero": ("text", lambda: _dictionary([0, -FAR], OK), "value.text"),
    "an offset past the end": (
        "raw",
        lambda: pa.Array.from_buffers(pa.binary(), 3, [None, _ends(0, 1, FAR, 3), pa.py_buffer(b"abc")]),
        "value.raw",
    ),
    "offsets that fall": (
        "raw",
        lambda: pa.Array.from_buffers(pa.binary(), 3, [None, _ends(0, 3, 1, 3), pa.py_buffer(b"abc")]),
        "value.raw",
    ),
    "an item": ("many", lambda: pa.ListArray.from_arrays(_int32(0, 1, 2), BAD), "value.many[]"),
    "an item of a fixed list": ("many", lambda: ARROW.FixedSizeListArray.from_arrays(BAD, 1), "value.many[]"),
    "a list past its items": (
        "many",
        lambda: pa.Array.from_buffers(pa.list_(pa.string()), 3, [None, _ends(0, 1, FAR, 2)], children=[OK]),
        "value.many",
    ),
    "a name in a map": ("named", lambda: _map(_ends(0, 1, 2), BAD, OK), "value.named{}"),
    "an item of a map": ("named", lambda: _map(_ends(0, 1, 2), OK, BAD), "value.named{}"),
    "a field of a record": ("inner", lambda: pa.StructArray.from_arrays([BAD], names=["label"]), "value.inner.label"),
    "a decimal of too many digits": (
        "price",
        lambda: pa.Array.from_buffers(
            pa.decimal128(4, 2), 2, [None, pa.py_buffer(bytes(16) + (10**9).to_bytes(16, "little"))]
        ),
        "value.price",
    ),
    "a time behind midnight": (
        "at",
        lambda: pa.Array.from_buffers(pa.time64("us"), 2, [None, pa.py_buffer(bytes(8) + b"\x01" * 8)]),
        "value.at",
    ),
}


def _int32(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32())


def _refused(writer: ChangeWriter, table: pa.Table) -> dict[str, Any]:
    """Return the facts of the refusal, and check that nothing of the table was buffered."""
    with pytest.raises(InvalidChange) as refused:
        writer.append_batch(table)
    assert refused.value.hint
    return dict(refused.value.facts)


@pytest.mark.parametrize("name", UNSOUND)
def test_a_cell_that_is_not_valid_is_refused_with_its_place(name: str) -> None:
    """A table with an invalid cell is refused with field and row.

    The writer continues, and its next commit is readable.
    """
    field, make, path = UNSOUND[name]
    column = make()
    with twin_rig("t").create(value_schema=_schema(field)) as log, Writer(log, "w") as writer:
        facts = _refused(writer, pa.table({"key": [b"k"] * len(column), field: column}))

        assert facts == {"field": path, "row": 1}
        writer.put(b"k", {field: ONE[field]})
        writer.commit()
        assert recover(log).to_arrow().num_rows == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_key_that_is_not_text_is_refused(kind: pa.DataType) -> None:
    """A key that is not UTF-8 is refused in a log of text, by writer and task. In a log of bytes it is a key."""
    table = pa.table({"key": _text(b"ok", b"more", LATIN, kind=kind), "value": [b"1", b"2", b"3"]})
    with (
        twin_rig("t").create(key_type="string") as log,
        Coordinator(log, "c") as coordinator,
        closing(log.kafka.producer()) as producer,
        TaskWriter(producer, coordinator.task(), slot=0) as task,
    ):
        assert _refused(task, table) == {"field": "key", "row": 2}
    with twin_rig("b").create() as log, Writer(log, "w") as writer:
        assert _refused(writer, table) == {"field": "key", "row": 2}
        writer.append_batch(table.set_column(0, "key", pa.array([b"ok", b"more", LATIN])))
        writer.commit()
        assert recover(log).to_dict() == {b"ok": b"1", b"more": b"2", LATIN: b"3"}


@pytest.mark.parametrize("name", ["op", "key_group"])
def test_columns_beside_the_change_are_validated(name: str) -> None:
    """An op or a key group that exceeds its buffers is refused like any other cell."""
    columns = {"key": [b"a", b"b"], "value": [b"1", b"2"]}
    column = _dictionary([0, FAR], pa.array(["put", "delete"]) if name == "op" else pa.array([0, 1]))
    with twin_rig("t").create() as log, Writer(log, "w") as writer:
        assert _refused(writer, pa.table({**columns, name: column})) == {"field": name, "row": 1}


@pytest.mark.parametrize("bad", [0, 77, 199_999, 399_999])
def test_a_bad_row_is_found_in_a_large_table(bad: int) -> None:
    """The row in the error counts from 0 in the whole table, whichever chunk it is in and however chunks are cut."""
    rows = [b"some text of a cell"] * 400_000
    rows[bad] = LATIN
    chunks = [_text(*rows[:200_000]), _text(*rows[200_000:])]
    table = pa.table({"key": pa.chunked_array([pa.array(range(200_000))] * 2), "text": pa.chunked_array(chunks)})
    with twin_rig("t").create(key_type="long", value_schema=_schema("text")) as log, Writer(log, "w") as writer:
        assert _refused(writer, table) == {"field": "value.text", "row": bad}
        assert writer.statistics().changes == 0


@pytest.mark.parametrize("rows", [1000, 300_000])
def test_what_is_nested_is_looked_at_once(rows: int) -> None:
    """Only the rows of a slice of nested values are copied and validated, so a bad row elsewhere does not matter."""
    column = pa.StructArray.from_arrays([_text(*[b"fine"] * rows, LATIN)], names=["label"])
    whole = pa.table({"key": pa.array(range(rows + 1)), "inner": column})
    with twin_rig("t").create(key_type="long", value_schema=_schema("inner")) as log, Writer(log, "w") as writer:
        writer.append_batch(whole.slice(0, rows))
        assert _refused(writer, whole.slice(rows - 10)) == {"field": "value.inner.label", "row": 10}
        writer.commit()
        assert recover(log).to_arrow().num_rows == rows


def test_a_map_with_one_key_twice() -> None:
    """An Arrow map with a repeated key retains both pairs as a column. A dict has the last, in recovery and table."""
    rig = twin_rig("t")
    column = pa.array([[("a", "1"), ("b", "2"), ("a", "3")]], pa.map_(pa.string(), pa.string()))
    with rig.create(value_schema=_schema("named")) as log, Writer(log, "w") as writer:
        writer.append_batch(pa.table({"key": [b"k"], "named": column}))
        writer.commit()
        kept = recover(log).to_arrow().column("value").to_pylist()
        assert kept == [{"named": [("a", "1"), ("b", "2"), ("a", "3")]}]
        assert recover(log).to_dict() == {b"k": {"named": {"a": "3", "b": "2"}}}
    with statelog.table("t", rig.where()) as table:
        assert table[b"k"] == {"named": {"a": "3", "b": "2"}}


# ---- ownership of memory


def _kinds() -> dict[str, pa.Array]:
    """Return a column of four rows in each of Arrow's forms that a log accepts."""
    words = pa.array(["a", "b", None, "long enough to be no part of a view"])
    lists, structs = pa.array([["a"], [], None, ["b", "c"]]), pa.array([{"x": "a"}, {"x": None}, None, {"x": "b"}])
    kinds = [words.cast(kind) for kind in (pa.large_string(), pa.binary(), pa.string_view(), ARROW.binary_view())]
    kinds += [
        words,
        words.dictionary_encode(),
        pa.array([1, None, 3, 4]),
        lists,
        lists.cast(pa.large_list(pa.string())),
    ]
    kinds += [structs, pa.StructArray.from_arrays([words.dictionary_encode()], names=["x"])]
    kinds += [pa.array([[("k", "v")], [], None, [("l", "w")]], pa.map_(pa.string(), pa.string()))]
    kinds += [pa.array([["a"], ["b"], None, ["c"]], pa.list_(pa.string(), 1))]
    return {f"{number} {kind.type}": kind for number, kind in enumerate(kinds)}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", _kinds())
def test_a_copy_shares_no_memory(name: str, start: int) -> None:
    """A copy of a column or a slice has the same rows and shares no buffers, at any depth."""
    batch = pa.RecordBatch.from_arrays([_kinds()[name]], names=["c"]).slice(start, 3)
    copy = copied(batch)
    copy.validate(full=True)
    assert copy.to_pylist() == batch.to_pylist() and copy.schema == batch.schema
    assert not set(_places(batch.column(0))) & set(_places(copy.column(0)))


def _places(column: pa.Array) -> Iterator[int]:
    """Return the addresses of all buffers below a column."""
    yield from (one.address for one in column.buffers() if one is not None and one.size)
    if isinstance(column, pa.DictionaryArray):
        yield from _places(column.dictionary)
    if isinstance(column, pa.StructArray):
        for number in range(column.type.num_fields):
            yield from _places(column.field(number))


@pytest.mark.parametrize("rows", [1, 1000, 30_000, 100_000])
def test_every_piece_is_ours_or_sent_at_once(rows: int) -> None:
    """Pieces that may be retained are copies. Others must be sent at once, however small. None is empty."""
    values = [bytes(8)] * (rows // 2) + [bytes(200)] * (rows - rows // 2)
    column = pa.array(values)
    table, half = pa.table({"key": column, "value": column}), WriterTuning().roll_bytes // 2
    pieces = list(take_in(table, 2 * half))
    assert pa.Table.from_batches([piece for piece, _ in pieces]).equals(table)
    assert all(piece.num_rows for piece, _ in pieces)
    shared = set(_places(column))
    for piece, is_ours in pieces:
        assert is_ours is not bool(shared & set(_places(piece.column(0))))
    assert {is_ours for _, is_ours in pieces} == {table.nbytes < half}
