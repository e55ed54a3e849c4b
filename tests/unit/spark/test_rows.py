"""Rows on their way into a log, without Spark's JVM: names, types, nulls, and repeated keys."""

import itertools
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from statelog.errors import ConfigError, InvalidChange, ValueTooLarge
from statelog.producer.change_maker import ChangeMaker
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.schema import OPAQUE, ValueSchema, parse_value_schema
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.repeated_keys import NewestRows, UniqueKeys
from statelog.spark.rows import TASK_BYTES, RowMapping, row_mapping, write_rows
from tests.support.rigs.log import twin_rig

WHERE = {"log": "log", "root": "memory://twin", "kafka.bootstrap.servers": "b:1", "writerId": "job"}
AVSC = (
    '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"},'
    '{"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": null}]}'
)
TYPED = parse_value_schema(AVSC, 1)
MAPPED = parse_value_schema(
    '{"type": "record", "name": "M", "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}]}', 1
)
WITH_DUE = parse_value_schema(AVSC.replace('"at"', '"due"'), 1)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Written:
    """A writer that collects what is written."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def append_batch(self, table: pa.RecordBatch) -> None:
        """Collect a batch."""
        self.batches.append(table)

    @property
    def rows(self) -> list[dict[str, object]]:
        """All rows."""
        return [row for batch in self.batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def descriptor() -> Descriptor:
    """Return the descriptor of a log with long keys."""
    with twin_rig("log").create(key_type="long") as log:
        return log.descriptor


def options(**given: str) -> WriteOptions:
    """Return the options of a batch write."""
    return write_options({**WHERE, **given}, streaming=False)


def columns(**kinds: DataType) -> StructType:
    """Return a DataFrame's columns."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def planned(descriptor: Descriptor, schema: StructType, value: ValueSchema = OPAQUE, **given: str) -> RowMapping:
    """Return the plan for these columns and options."""
    return row_mapping(schema, options(**given), descriptor, value)


def written(plan: RowMapping, *batches: pa.RecordBatch, strict: bool = False) -> list[dict[str, object]]:
    """Return what a task writes of these batches."""
    sink = Written()
    write_rows(batches, plan, sink.append_batch, is_case_sensitive=strict)
    return sink.rows


def batch(keys: Sequence[int], **more: Sequence[object]) -> pa.RecordBatch:
    """Return rows with these keys and values."""
    return pa.RecordBatch.from_pydict({"key": list(keys), "value": [b"v"] * len(keys), **more})


# ---- names


def test_names_follow_sparks_rule(descriptor: Descriptor) -> None:
    """Case does not count in names, unless the session says so. An exact name wins."""
    plan = planned(descriptor, columns(KEY=LongType(), Value=BinaryType()))
    rows = pa.RecordBatch.from_pydict({"KEY": [1], "Value": [b"v"]})
    assert written(plan, rows) == [{"key": 1, "value": b"v"}]
    with pytest.raises(InvalidChange, match="caseSensitive is set"):
        written(plan, rows, strict=True)
    for other in ("key", "Key"):
        with pytest.raises(InvalidChange, match="two columns of one name"):
            planned(descriptor, columns(KEY=LongType(), value=BinaryType()).add(other, LongType()))
    mixed = parse_value_schema(AVSC.replace('"at"', '"N"'), 1)
    names = planned(descriptor, columns(key=LongType(), n=IntegerType(), N=TimestampType()), mixed).names
    assert names.given == names.columns


def test_columns_that_are_not_the_logs_are_named(descriptor: Descriptor) -> None:
    """Unknown columns, missing ones, and a missing sequence are refused by name."""
    with pytest.raises(InvalidChange, match="unknown=m, missing=value"):
        planned(descriptor, columns(key=LongType(), m=LongType()))
    with pytest.raises(InvalidChange, match="no column seq"):
        planned(descriptor, columns(key=LongType(), value=BinaryType()), sequenceBy="seq")


# ---- pieces


def test_rows_are_written_in_larger_pieces_than_sparks(descriptor: Descriptor) -> None:
    """Small batches are joined up to what a writer sends at once, in order. A large batch is written by itself.

    Two Arrow arrays need not fit into one, and a larger piece would be cut again into smaller chunks.
    """
    plan, sink = planned(descriptor, columns(key=LongType(), value=BinaryType()), uniqueKeys="true"), Written()
    few, large = range(100), bytes(TASK_BYTES)
    given = [batch([key]) for key in few] + [batch([100], value=[large])] + [batch([key]) for key in range(101, 110)]
    write_rows(given, plan, sink.append_batch, is_case_sensitive=False)
    assert [one.num_rows for one in sink.batches] == [100, 1, 9]
    assert [row["key"] for row in sink.rows] == list(range(110))
    sink.batches.clear()
    some = batch([1], value=[bytes(TASK_BYTES // 6)])  # With its key, more than a sixth.
    write_rows([some] * 12, plan, sink.append_batch, is_case_sensitive=False)
    assert [one.num_rows for one in sink.batches] == [5, 5, 2]
    assert all(one.nbytes <= TASK_BYTES for one in sink.batches)


# ---- types


@pytest.mark.parametrize(
    ("schema", "value", "column", "texts"),
    [
        (columns(key=StringType(), value=BinaryType()), OPAQUE, "key", ("string", "bigint", "cast(key as bigint)")),
        (columns(key=LongType(), value=LongType()), OPAQUE, "value", ("bigint", "binary", "as string) as binary)")),
        (columns(key=LongType(), n=StringType()), TYPED, "n", ("string", "int", "cast(n as int)")),
        (columns(key=LongType(), n=IntegerType(), at=LongType()), TYPED, "at", ("timestamp", "cast(at as timestamp)")),
        (columns(key=LongType()), TYPED, "n", ("nothing", "int", "Add n")),
        (columns(key=LongType(), value=columns(n=StringType())), TYPED, "value", ("cast(value as struct<n:int",)),
        (columns(key=LongType(), m=MapType(LongType(), LongType())), MAPPED, "m", ("cast(m as map<string,bigint>)",)),
    ],
    ids=str,
)
def test_what_can_never_fit_is_refused_at_planning(
    descriptor: Descriptor, schema: StructType, value: ValueSchema, column: str, texts: tuple[str, ...]
) -> None:
    """A column that can never fit is refused at planning, with both types and the cast to write."""
    with pytest.raises(InvalidChange) as caught:
        planned(descriptor, schema, value)
    assert caught.value.facts["column"] == column
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("n", "at", "advice"),
    [
        (1, NOON.replace(microsecond=1), "Write date_trunc('millisecond', at)"),
        (None, NOON, "Fill the nulls of n, as by coalesce(n, ...), or leave such rows out"),
        (1 << 40, NOON, "Evolve the field to a wider type, or write try_cast(n as int), which makes others null"),
    ],
)
def test_what_may_not_fit_is_named_when_it_does_not(
    descriptor: Descriptor, n: int | None, at: datetime, advice: str
) -> None:
    """A value that does not fit, such as microseconds, a null or a large number, is refused with what to write."""
    plan = planned(descriptor, columns(key=LongType(), n=LongType(), at=TimestampType()), TYPED)
    maker = ChangeMaker(descriptor, TYPED, range(descriptor.partitions))
    with pytest.raises(InvalidChange) as caught:
        write_rows(
            [pa.RecordBatch.from_pydict({"key": [1], "n": [n], "at": [at]})],
            plan,
            maker.of_batch,
            is_case_sensitive=False,
        )
    assert caught.value.hint == advice


def test_a_wrong_op_is_named(descriptor: Descriptor) -> None:
    """A wrong op, such as upper case or Debezium's c, u and d, is refused with the accepted ones."""
    maker = ChangeMaker(descriptor, OPAQUE, range(descriptor.partitions))
    with pytest.raises(InvalidChange, match=r"an op is 'PUT'.*put or delete, in lower case"):
        maker.of_batch(batch([1, 2], op=["put", "PUT"]))


# ---- nulls


def test_a_null_value_deletes_only_by_a_word(descriptor: Descriptor) -> None:
    """A null value deletes only by nullDeletes or a column op. Otherwise it is refused, as a failed cast."""
    schema = columns(key=LongType(), value=BinaryType())
    rows = pa.RecordBatch.from_pydict({"key": [1, 2], "value": [b"v", None]})
    with pytest.raises(InvalidChange, match="no column op") as caught:
        written(planned(descriptor, schema), rows)
    assert caught.value.facts == {"column": "value", "nulls": 1}
    assert len(written(planned(descriptor, schema, nullDeletes="true"), rows)) == 2
    with pytest.raises(ConfigError, match="nullDeletes"):
        planned(descriptor, columns(key=LongType(), op=StringType(), value=BinaryType()), nullDeletes="true")
    with pytest.raises(InvalidChange, match="a key is null"):
        written(planned(descriptor, schema), pa.RecordBatch.from_pydict({"key": [None], "value": [b"v"]}))


# ---- repeated keys


def test_a_key_comes_once_in_a_task(descriptor: Descriptor) -> None:
    """A repeated key in a task is refused, in one batch or in two. With uniqueKeys, rows are not checked."""
    schema = columns(key=LongType(), value=BinaryType())
    plan = planned(descriptor, schema)
    assert len(written(plan, batch([1, 2]), batch([3]))) == 3
    for batches in ([batch([1, 2, 1])], [batch([1, 2]), batch([3, 2])]):
        with pytest.raises(InvalidChange, match="more than once") as caught:
            written(plan, *batches)
        assert caught.value.facts["repeated_rows"] == 1
        assert "sequenceBy" in caught.value.hint
        assert written(planned(descriptor, schema, uniqueKeys="true"), *batches)
    with pytest.raises(ConfigError, match="exclude each other"):
        options(uniqueKeys="true", sequenceBy="seq")


@pytest.mark.parametrize("text", [False, True])
def test_many_keys_are_compared_in_bounded_memory(text: bool) -> None:
    """Many keys are compared through a file above the memory budget, and a key in another part of it is found."""
    numbers = list(range(10_000))
    random.Random(5).shuffle(numbers)
    again = [numbers[17], numbers[6_000]]

    def column(some: list[int]) -> pa.Array:
        return pa.array([f"key-{one}" for one in some]) if text else pa.array(some)

    with UniqueKeys(memory_rows=1000) as keys:
        for start in range(0, 10_000, 700):
            keys.add(column(numbers[start : start + 700]))
        keys.check()
    with UniqueKeys(memory_rows=1000) as keys:
        for start in range(0, 10_000, 700):
            keys.add(column(numbers[start : start + 700]))
        keys.add(column(again))
        with pytest.raises(InvalidChange, match="more than once"):
            keys.check()


def test_a_key_may_come_in_two_key_groups_of_the_callers() -> None:
    """One key may come in two key groups that callers name, where the key group is part of the key."""
    key_groups = pa.array([0, 1, 2], pa.uint16()).to_numpy()
    with UniqueKeys() as keys:
        keys.add(pa.array([1, 1, 1]), key_groups)
        keys.check()
        keys.add(pa.array([1]), key_groups[1:2])
        with pytest.raises(InvalidChange):
            keys.check()


def test_the_greatest_sequence_wins_in_any_order(descriptor: Descriptor) -> None:
    """The greatest sequence of a key wins, in any order and batches. It need not be part of the value."""
    schema = columns(key=LongType(), value=BinaryType(), seq=LongType())
    plan = planned(descriptor, schema, sequenceBy="SEQ")
    rows = [(1, b"a", 1), (1, b"b", 3), (1, b"c", 2), (2, b"d", 9), (2, b"d", 9), (3, b"e", -1)]
    for order in itertools.permutations(rows):
        parts = [order[:2], order[2:]]
        batches = [
            pa.RecordBatch.from_pydict(dict(zip(("key", "value", "seq"), zip(*part, strict=True), strict=True)))
            for part in parts
        ]
        found = sorted((row["key"], row["value"]) for row in written(plan, *batches))
        assert found == [(1, b"b"), (2, b"d"), (3, b"e")]
    assert written(plan) == []


def test_a_tie_of_different_rows_is_refused() -> None:
    """A tie of different rows is refused only where it decides, in any order and portions."""
    rows = [(1, b"a", 1), (1, b"b", 1), (1, b"c", 2), (2, b"d", 5), (2, b"e", 5)]

    def newest(some: Sequence[tuple[int, bytes, int]], budget_bytes: int) -> list[bytes]:
        kept = NewestRows("seq", budget_bytes)
        for key, value, sequence in some:
            kept.add(pa.RecordBatch.from_pydict({"key": [key], "value": [value], "seq": [sequence]}))
        found = kept.take()
        assert found is not None
        return sorted(found.column("value").to_pylist())

    for budget_bytes in (1, 1 << 20):
        for order in itertools.permutations(rows[:3]):
            assert newest(order, budget_bytes) == [b"c"]
        for order in itertools.permutations(rows[2:]):
            with pytest.raises(InvalidChange, match="same sequence"):
                newest(order, budget_bytes)
    with pytest.raises(InvalidChange, match="no sequence"):
        NewestRows("seq").add(pa.RecordBatch.from_pydict({"key": [1], "seq": pa.array([None], pa.int64())}))


def test_equal_rows_with_a_nan_are_one() -> None:
    """Equal rows with a NaN are one row. A NaN and a number differ."""

    def newest(*values: object) -> int:
        kept = NewestRows("seq")
        kept.add(pa.RecordBatch.from_pydict({"key": [1, 1], "value": list(values), "seq": [1, 1]}))
        found = kept.take()
        return found.num_rows if found is not None else 0

    assert newest(math.nan, math.nan) == newest({"x": [math.nan]}, {"x": [math.nan]}) == 1
    for others in ((math.nan, 1.0), (math.nan, None), ({"x": [math.nan]}, {"x": [math.nan, 2.0]})):
        with pytest.raises(InvalidChange, match="same sequence"):
            newest(*others)


def test_a_batch_without_rows_is_none() -> None:
    """A batch without rows writes nothing, alone or among others."""
    none = pa.RecordBatch.from_pydict({"key": pa.array([], pa.int64()), "seq": pa.array([], pa.int64())})
    kept = NewestRows("seq")
    kept.add(none)
    assert kept.take() is None
    for one in (none, pa.RecordBatch.from_pydict({"key": [1], "seq": [1]}), none):
        kept.add(one)
    found = kept.take()
    assert found is not None
    assert found.num_rows == 1


@pytest.mark.parametrize("option", [{}, {"sequenceBy": "seq"}, {"uniqueKeys": "true"}])
def test_a_key_group_that_is_null_is_refused(option: dict[str, str]) -> None:
    """A null key group is refused by name, whatever the rule for repeated keys."""
    with twin_rig("placed").create(key_type="long", hash_rule="caller") as log:
        placed = log.descriptor
    schema = columns(key=LongType(), key_group=IntegerType(), value=BinaryType())
    rows = {"key": [1, 1], "key_group": pa.array([None, 1], pa.int32()), "value": [b"a", b"b"]}
    if "sequenceBy" in option:
        schema, rows = schema.add("seq", LongType()), {**rows, "seq": [1, 2]}
    plan = row_mapping(schema, options(**option), placed, OPAQUE)
    with pytest.raises(InvalidChange, match="a key group is null"):
        written(plan, pa.RecordBatch.from_pydict(rows))


def test_what_is_held_is_bounded_by_the_keys() -> None:
    """Rows that a newer one of their key replaces are dropped on the way, so the number of keys bounds memory."""
    kept = NewestRows("seq", budget_bytes=10_000)
    for sequence in range(200):
        kept.add(pa.RecordBatch.from_pydict({"key": list(range(100)), "seq": [sequence] * 100}))
        assert kept._held_bytes <= 12_000  # pyright: ignore[reportPrivateUsage] # what the test is about
    found = kept.take()
    assert found is not None
    assert (found.num_rows, set(found.column("seq").to_pylist())) == (100, {199})


# ---- partitions


def test_a_job_takes_the_partitions_that_it_names() -> None:
    """A job takes all partitions, some by number, or a share. None, and one that the log lacks, are refused."""
    assert options().taken(4) == (0, 1, 2, 3)
    assert options(partitions="0:2,3").taken(4) == (0, 1, 3)
    assert [options(partitions=f"{one}/3").taken(4) for one in range(3)] == [(0, 1), (2,), (3,)]
    for wrong in ("4", "4/5"):
        with pytest.raises(ConfigError, match="a partition that the log lacks"):
            options(partitions=wrong).taken(4)
    for wrong in ("3/3", "/2", "0/2,1", "x"):
        with pytest.raises(ConfigError, match="the option partitions is"):
            options(partitions=wrong)


def test_newest_rows_of_more_than_an_array_holds_are_refused() -> None:
    """A task that would hold 2 GiB of a column of newest rows is refused with what to do."""
    texts = pa.array(["x" * (1 << 20)] * 64)  # Shared, so that it takes little memory.
    newest = NewestRows("seq", budget_bytes=1 << 40)
    for number in range(40):
        keys = pa.array([b"%d-%d" % (number, row) for row in range(64)])
        newest.add(pa.record_batch({"key": keys, "seq": pa.array(range(64)), "t": texts}))
    with pytest.raises(ValueTooLarge, match="more than 2 GiB") as refused:
        newest.take()
    assert "more tasks" in refused.value.hint


# ---- dues


def test_rows_with_dues(descriptor: Descriptor) -> None:
    """A column `due` of times goes to the log as it is, beside bytes, fields and a whole value."""
    plan = planned(descriptor, columns(key=LongType(), value=BinaryType(), Due=TimestampType()))
    rows = pa.RecordBatch.from_pydict({"key": [1], "value": [b"v"], "Due": pa.array([NOON])})
    assert written(plan, rows) == [{"key": 1, "value": b"v", "due": NOON}]
    assert (
        planned(descriptor, columns(key=LongType(), n=IntegerType(), due=TimestampType()), TYPED).names.kept[2] == "due"
    )
    whole = StructType([StructField("n", IntegerType(), nullable=False)])
    assert planned(descriptor, columns(key=LongType(), value=whole, due=TimestampType()), WITH_DUE)


@pytest.mark.parametrize("kind", [LongType(), StringType(), DateType(), TimestampNTZType()], ids=str)
def test_a_due_of_another_type_is_refused(descriptor: Descriptor, kind: DataType) -> None:
    """A column `due` that is no time is refused during planning, with the cast."""
    with pytest.raises(InvalidChange, match="column due can never be written") as caught:
        planned(descriptor, columns(key=LongType(), value=BinaryType(), due=kind))
    assert caught.value.hint == "Write cast(due as timestamp)"


def test_a_field_of_that_name_is_the_values(descriptor: Descriptor) -> None:
    """In a log whose values have a field `due`, a column of that name is the field, as in `append_batch`."""
    assert planned(descriptor, columns(key=LongType(), n=IntegerType(), due=TimestampType()), WITH_DUE).names.kept
    with pytest.raises(InvalidChange, match="column due can never be written"):
        planned(descriptor, columns(key=LongType(), n=IntegerType(), due=LongType()), WITH_DUE)


def test_a_sequence_of_that_name_orders_and_is_no_due(descriptor: Descriptor) -> None:
    """A column `due` that `sequenceBy` names only orders the rows of a key, as it did before rows had dues."""
    plan = planned(descriptor, columns(key=LongType(), value=BinaryType(), due=LongType()), sequenceBy="due")
    assert written(plan, batch([1, 1], due=[2, 1])) == [{"key": 1, "value": b"v"}]
