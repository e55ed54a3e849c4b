"""Numbers as numpy arrays and as Arrow columns."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.schemas.arrays import about_bytes, column_of, column_of_rows, fits, numbers_of, taken
from statelog.schemas.values.schema import columns_of, parse_value_schema, rows_to_struct

_KINDS = (np.bool_, np.uint8, np.uint16, np.int32, np.int64, np.uint64, np.float64)

_WRITE = """
import sys
import pyarrow as pa
from statelog.producer.coordinator import Coordinator
from statelog.producer.coordinator import TaskWriter
from statelog.spark.repeated_keys import NewestRows, UniqueKeys
import statelog.spark.sink
from tests.support.rigs.history import history_rig

(batch,) = pa.ipc.open_stream(sys.stdin.buffer.read())
log = history_rig().log
with Coordinator(log, "w") as coordinator, TaskWriter(log.kafka.producer(), coordinator.task(), slot=0) as task:
    with UniqueKeys() as keys:
        keys.add(batch.column("key"))
        keys.check()
    newest = NewestRows("value", budget_bytes=1)
    newest.add(batch)
    newest.add(batch)
    task.append_batch(newest.take())
    coordinator.commit([task.finish()])
print("pandas" in sys.modules)
"""


_ROUNDS = """
import sys
import pyarrow as pa
from statelog.materializer import MaterializerSettings, run_round
from statelog.producer import Writer
from tests.support.rigs.log import twin_rig

(batch,) = pa.ipc.open_stream(sys.stdin.buffer.read())
log = twin_rig("log").create()
with Writer(log, "w") as writer:
    for _ in range(3):
        writer.append_batch(batch)
        writer.commit()
        print(run_round(log, MaterializerSettings(fanout=2)).rows)
print("pandas" in sys.modules)
"""


_RECOVERIES = """
import sys
from statelog.producer import Writer
from statelog.recovery import recover
from tests.support.rigs.log import twin_rig

log = twin_rig("log").create()
with Writer(log, "w") as writer:
    for _ in range(2):
        for number in range(100):
            writer.put(b"%d" % number, b"v")
        writer.commit()
print(recover(log).to_arrow().num_rows, len(recover(log, key_groups=range(16)).to_dict()))
print(len(recover(log, key_groups=[3]).to_dict()) < 100)
with Writer(log, "w") as writer:
    for _ in range(2):
        writer.put(b"k" * 100, b"v")
        writer.delete(b"0")
        writer.commit()
print(recover(log).to_arrow(ordered=True).num_rows)
print("pandas" in sys.modules)
"""


_FIELDS_AND_VALUES: dict[str, tuple[object, object]] = {
    "flag": ("boolean", True),
    "count": ("int", 1),
    "total": ("long", 1 << 40),
    "share": ("float", 0.5),
    "mean": (["null", "double"], None),
    "name": ("string", "a"),
    "data": ("bytes", b"b"),
    "tags": ({"type": "array", "items": "string"}, ["c"]),
    "marks": ({"type": "map", "values": ["null", "int"]}, {"d": 1}),
    "kind": ({"type": "enum", "name": "Kind", "symbols": ["E", "F"]}, "E"),
}
_ROW = {name: value for name, (_, value) in _FIELDS_AND_VALUES.items()}
_FIELDS = [
    {"name": name, "type": kind, **({"default": None} if kind == ["null", "double"] else {})}
    for name, (kind, _) in _FIELDS_AND_VALUES.items()
]
_SCHEMA = {"type": "record", "name": "Row", "fields": _FIELDS}
_TYPED = f"""
import json
import sys
import pyarrow as pa
from statelog.producer import Writer
from statelog.recovery import plan_changes, read_changes, recover
from statelog.schemas.arrays import column_of_rows
from statelog.spark.columns import change_batches
from tests.support.rigs.log import twin_rig

schema = {_SCHEMA!r}
log = twin_rig("log").create(value_schema=json.dumps(schema))
with Writer(log, "w") as writer:
    rows = pa.ipc.open_stream(sys.stdin.buffer.read()).read_all()
    writer.append_batch(rows.append_column("op", column_of_rows(["put"] * len(rows), pa.string())))
    writer.commit()
    schema["fields"][1]["type"] = "long"
    log.evolve_value_schema(json.dumps(schema))
    writer.append_batch(rows.slice(1).append_column("op", rows.slice(1).column("count").cast(pa.uint8())))
    writer.commit()
print(recover(log).to_dict() == {{b"a": {_ROW!r}}})
changes = list(read_changes(log, plan_changes(log)))
print(recover(log).digest().rows, sum(map(len, changes)))
wanted = pa.schema([("op", pa.string()), ("writer", pa.string()), ("position", pa.int64())])
for rows in changes:
    for made in change_batches(rows.select(["op"]), wanted, 7):
        print(*(f"{{row['op']}}-{{row['writer']}}-{{row['position']}}" for row in made.to_pylist()))
print("pandas" in sys.modules)
"""


_PLACED = """
import sys
import pyarrow as pa
from statelog.producer import Writer
from tests.support.rigs.log import twin_rig

(batch,) = pa.ipc.open_stream(sys.stdin.buffer.read())
numbers = batch.column("value").cast(pa.string())
groups, ops = numbers.cast(pa.int64()), numbers.cast(pa.uint8()).cast(pa.bool_()).cast(pa.uint8())
placed = batch.append_column("key_group", groups).append_column("op", ops)
log = twin_rig("log").create(hash_rule="caller")
with Writer(log, "w") as writer:
    writer.append_batch(placed)
    writer.commit()
print("pandas" in sys.modules)
"""


_PUTS = """
import sys
from statelog.producer import Writer
from statelog.tables import table
from tests.support.rigs.log import twin_rig

rig = twin_rig("log")
rig.create().close()
with table("log", rig.where()) as counts:
    counts[b"a"] = b"1"
    counts.commit()
    del counts[b"a"]
    counts.commit()
with rig.open() as log, Writer(log, "w") as writer:
    writer.put(b"k", b"v")
    writer.delete(b"k")
    writer.commit()
print("pandas" in sys.modules)
"""


_PUTS_INTO_ROCKSDB = """
import sys, tempfile
from statelog.tables import table
from tests.support.rigs.log import twin_rig

rig = twin_rig("log")
rig.create().close()
for _ in range(2):
    with tempfile.TemporaryDirectory() as home, table("log", rig.where(), backend="rocksdb", directory=home) as counts:
        counts[b"a"] = b"1"
        counts.commit()
        counts.update({b"%d" % n: b"1" for n in range(3000)})
        counts.commit()
print("pandas" in sys.modules)
"""


@settings(deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 200)), st.sampled_from(_KINDS), st.integers(0, 5), st.integers(1, 3))
def test_there_and_back(with_pandas: bool, numbers: list[int], kind: type[np.generic], start: int, step: int) -> None:
    """Numbers of any type and count survive from any row on, as in pyarrow, with and without pandas."""
    given_numbers = np.array(numbers, kind)[::step]
    expected = pa.array(given_numbers)
    with pytest.MonkeyPatch.context() as patch:
        if with_pandas:
            patch.setitem(sys.modules, "pandas", sys.modules.get("pandas", sys))
        else:
            patch.delitem(sys.modules, "pandas", raising=False)
        column = column_of(given_numbers)
        found = numbers_of(column.slice(start))
    column.validate(full=True)
    assert column.equals(expected)
    assert found.dtype == given_numbers.dtype
    assert np.array_equal(found, given_numbers[start:])


def test_a_null_is_refused() -> None:
    """A column with a null has no array, whatever bytes are below the null."""
    with pytest.raises(pa.ArrowInvalid):
        numbers_of(pa.array([1, None], pa.int64()))


def test_a_write_of_batches_leaves_pandas_alone() -> None:
    """The imports of Spark's sink, a task's write and its commit do not import pandas, even with a sequence."""
    assert _printed_by(_WRITE) == [b"False"]


def test_rounds_leave_pandas_alone() -> None:
    """A materializer and its rounds, merges included, do not import pandas, even if it is available."""
    assert _printed_by(_ROUNDS) == [b"2", b"2", b"2", b"False"]


def test_a_writer_and_a_table_put_and_delete_without_pandas() -> None:
    """Puts and deletes of a writer and a table do not import pandas, which would dominate their first commit."""
    assert _printed_by(_PUTS) == [b"False"]


_TWO = pa.RecordBatch.from_pydict({"key": [b"a", b"bc"], "value": [b"1", b"2"]})


def _printed_by(program: str, rows: pa.RecordBatch = _TWO) -> list[bytes]:
    """Run a program with a batch of changes as its input, where pandas can be imported, and return its output."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    done = subprocess.run(
        [sys.executable, "-c", program], input=sink.getvalue().to_pybytes(), capture_output=True, check=True, timeout=60
    )
    assert subprocess.run([sys.executable, "-c", "import pandas"], check=False, timeout=60).returncode == 0
    return done.stdout.split()


def test_what_a_batch_takes_is_told_without_counting_it() -> None:
    """A small batch counts its buffers' contents, and a slice of a large one its own share, without counting bytes."""
    large = pa.record_batch({"key": pa.array([b"k" * 100] * 10_000), "value": pa.array([b"v" * 100] * 10_000)})
    small = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])})
    assert about_bytes(large) == large.nbytes
    assert about_bytes(large.slice(0, 10)) == large.slice(0, 10).nbytes
    assert about_bytes(small) == small.get_total_buffer_size() >= small.nbytes
    assert fits(small, 1 << 20)
    assert not fits(small, small.nbytes - 1)
    assert fits(large.slice(0, 10), 10_000)
    assert not fits(large, large.nbytes - 1)


def test_a_buffer_that_columns_share_counts_for_each() -> None:
    """A buffer that columns share counts for each, since a chunk holds it as often."""
    shared = pa.array([b"x" * 1000])
    batch = pa.record_batch({f"field{i}": shared for i in range(8)})
    assert not fits(batch, 4000)


_VALUES = st.lists(st.binary(max_size=300), min_size=1, max_size=5)


@settings(deadline=None)
@given(values=_VALUES, sliced=st.integers(0, 40), of_one=st.booleans(), has_null=st.booleans())
def test_rows_are_moved_as_arrow_moves_them(values: list[bytes], sliced: int, of_one: bool, has_null: bool) -> None:
    """Rows are moved as by Arrow: of equal or different lengths, empty or long, with a null, and of a slice."""
    count, width = 2100, len(values[0])
    rows: list[bytes | None] = [values[i % len(values)] for i in range(count)]
    if of_one:
        rows = [(row or b"").ljust(width)[:width] for row in rows]
    if has_null:
        rows[50] = None
    text = pa.array([f"{i:05}" for i in range(count)])
    batch = pa.record_batch({"b": pa.array(rows, pa.binary()), "t": text, "n": np.arange(count)}).slice(sliced)
    order = np.random.default_rng(count).permutation(batch.num_rows)
    moved = taken(batch, order)
    moved.validate(full=True)
    assert moved.equals(batch.take(pa.array(order)))


_ROWS = (
    (pa.binary(), st.binary(max_size=9) | st.sampled_from([bytes(255), bytes(256)]) | st.none()),
    (pa.string(), st.text(max_size=9) | st.none()),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1) | st.none()),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1) | st.none()),
    (pa.float64(), st.floats(allow_nan=False) | st.none()),
    (pa.float32(), st.floats(allow_nan=False) | st.none()),
    (pa.bool_(), st.booleans() | st.none()),
)


@settings(deadline=None)
@given(st.sampled_from(_ROWS).flatmap(lambda one: st.tuples(st.just(one[0]), st.lists(one[1]))), st.booleans())
def test_rows_become_the_column_that_pyarrow_makes(made: tuple[pa.DataType, list[object]], with_pandas: bool) -> None:
    """Bytes, text, numbers and booleans, with and without nulls, become pyarrow's column, with and without pandas."""
    kind, rows = made
    expected = pa.array(rows, kind)
    with pytest.MonkeyPatch.context() as patch:
        if with_pandas:
            patch.setitem(sys.modules, "pandas", sys.modules.get("pandas", sys))
        else:
            patch.delitem(sys.modules, "pandas", raising=False)
        column = column_of_rows(rows, kind)
    column.validate(full=True)
    assert column.equals(expected)


def test_a_number_that_is_none_stays_one() -> None:
    """NaN is no null, and a null is no NaN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "pandas", raising=False)
        column = column_of_rows([float("nan"), None, 0.5], pa.float64())
    assert str(column.to_pylist()) == "[nan, None, 0.5]"


@pytest.mark.parametrize(("kind", "row"), [(pa.string(), "\ud800"), (pa.int64(), 1 << 63)])
def test_what_has_no_bytes_is_refused_with_pandas_or_without(kind: pa.DataType, row: object) -> None:
    """A value without bytes is refused as by pyarrow, with and without pandas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "pandas", raising=False)
        with pytest.raises((UnicodeError, OverflowError)):
            column_of_rows([row], kind)


def test_recoveries_leave_pandas_alone() -> None:
    """Recoveries do not import pandas, even with repeated keys or only some key groups."""
    assert _printed_by(_RECOVERIES) == [b"100", b"100", b"True", b"100", b"False"]


def test_typed_values_and_changes_leave_pandas_alone() -> None:
    """Typed values do not import pandas: as columns, out again, to Spark, in Avro's form, and into another schema."""
    values = rows_to_struct([_ROW, _ROW], parse_value_schema(json.dumps(_SCHEMA), 1))
    rows = columns_of(values).append_column("key", pa.array([b"a", b"b"]))
    changes = [b"put-None-7", b"put-None-7", b"delete-None-7"]
    assert _printed_by(_TYPED, rows) == [b"True", b"1", b"3", *changes, b"False"]


def test_a_batch_that_names_key_groups_and_deletes_leaves_pandas_alone() -> None:
    """A batch that names key groups and deletes does not import pandas, as in a worker's commits."""
    assert _printed_by(_PLACED) == [b"False"]


def test_a_table_in_rocksdb_leaves_pandas_alone() -> None:
    """Small and large commits of a table in RocksDB, and a new directory, do not import pandas."""
    assert _printed_by(_PUTS_INTO_ROCKSDB) == [b"False"]
