"""Columns of a DataFrame: those of a state (`schemas.values.schema`) and of changes, and the key group. Pure.

Two tasks of a batch must not write the same key group, for nothing orders them. In a DataFrame partitioned by key
group they cannot. Each task then writes to few partitions, which is also fastest: persisting costs a request for each.

Invariant: a batch that is read has exactly the Arrow schema that Spark computes from the columns. Spark checks only the
first batch of a task.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from statelog.errors import ConfigError
from statelog.log import Log
from statelog.schemas.arrays import column_of_rows, scalar_of
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, spark_expression
from statelog.schemas.names import check_kind
from statelog.schemas.values.schema import BATCH_ROWS, ValueSchema, state_schema, table_type


def state_columns(
    descriptor: Descriptor, value: ValueSchema, *, include_key_group: bool, include_due: bool = False
) -> StructType:
    """Return the columns of a state, all nullable."""
    schema = state_schema(descriptor, value, include_key_group=include_key_group, include_due=include_due)
    return from_arrow_schema(schema)


def spark_arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares with the first batch of a task."""
    return to_arrow_schema(columns, timezone="UTC")


def check_columns(given: StructType, expected: StructType, what: str) -> None:
    """Raise ConfigError if the columns that Spark was given are not those of `what`."""
    if not _same(given, expected):
        raise ConfigError(
            f"the given schema differs from that of {what}",
            given=given.simpleString(),
            expected=expected.simpleString(),
            hint="Omit .schema(), and for a stream the option read; select, rename and cast after the read",
        )


def newest_with(
    given: StructType, schemas: Sequence[ValueSchema], columns_of: Callable[[ValueSchema], StructType], what: str
) -> ValueSchema:
    """Return the newest value schema that has the given columns, by `columns_of`. Raises ConfigError if none has.

    It is not always the last one: a DataFrame or a query may be older than the last evolution.
    """
    for one in reversed(schemas):
        if _same(given, columns_of(one)):
            return one
    check_columns(given, columns_of(schemas[-1]), what)
    return schemas[-1]


def _same(one: StructType, other: StructType) -> bool:
    """Return whether two lists of columns have the same names and types in the same order."""
    return spark_arrow_schema(one).equals(spark_arrow_schema(other))


def change_columns(
    descriptor: Descriptor, value: ValueSchema, names: Collection[str] | None = None, *, include_due: bool = False
) -> StructType:
    """Return the columns of committed changes with these names (None: all). The value is one, null in a delete."""
    types = {
        "key": descriptor.key_type.arrow_type,
        "op": pa.string(),
        "value": table_type(value.shown_type),
        "key_group": pa.int32(),
        "writer": pa.string(),
        "checkpoint": pa.int64(),
        "position": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    if include_due:
        types[DUE.name] = pa.timestamp("us", tz="UTC")
    return chosen(from_arrow_schema(pa.schema(types)), names)


def change_batches(changes: pa.RecordBatch, wanted: pa.Schema, position: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield changes from recovery as batches of the wanted columns, of at most 65,536 rows.

    The rows of a state, at `position`, are puts without a commit: the columns of a commit are null.
    """
    arrays: list[pa.Array] = []
    for field in wanted:
        if field.name == "op":
            arrays.append(column_of_rows(["put", "delete"], pa.string()).take(changes.column("op")))
        elif field.name in changes.schema.names:
            arrays.append(changes.column(field.name).cast(field.type))
        elif field.name == "position" and position is not None:
            arrays.append(pa.repeat(scalar_of(position, field.type), changes.num_rows))
        else:
            arrays.append(pa.nulls(changes.num_rows, field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)


def chosen(columns: StructType, names: Collection[str] | None) -> StructType:
    """Return the columns with these names, in the order of the state. Raises ConfigError for an unknown name."""
    if names is None:
        return columns
    unknown = sorted(set(names) - set(columns.fieldNames()))
    if unknown:
        known = ", ".join(columns.fieldNames())
        raise ConfigError(f"the state has no column {', '.join(unknown)}", hint=f"Name one of {known}")
    return StructType([field for field in columns.fields if field.name in names])


def key_group_column(name: str, key_type: KeyType | str, key_groups: int, prefix_bytes: int | None = None) -> Column:
    """Return a column with the key group (int) of the top-level column `name`; null for a null.

    It needs no log:

        >>> people = spark.createDataFrame([("alice",)], "name string")
        >>> people.select(key_group_column("name", "string", 128)).first()[0]
        71
    """
    return F.expr(spark_expression(name, key_type, key_groups, prefix_bytes))


def repartition_by_key_group(df: DataFrame, log: Log | Descriptor, tasks: int | None = None) -> DataFrame:
    """Return `df` in `tasks` partitions (None: as many as the log has) of adjacent key groups, for a write.

    Needs the column `key`, or `key_group` if the log's callers place their keys. Raises ConfigError.

        >>> rows = spark.createDataFrame([(b"alice", b"1")], "key binary, value binary")
        >>> repartition_by_key_group(rows, log).rdd.getNumPartitions()
        4
    """
    check_kind("log", log, Log, Descriptor, example="statelog.open(name, where)")
    descriptor = log.descriptor if isinstance(log, Log) else log
    count = descriptor.partitions if tasks is None else tasks
    if not 1 <= count <= descriptor.key_groups:
        raise ConfigError(
            f"{count} tasks for {descriptor.key_groups} key groups", hint="Use at most one task per key group"
        )
    if descriptor.hash_rule is HashRule.CALLER:
        group = F.col("key_group").cast(IntegerType())
    else:
        group = key_group_column("key", descriptor.key_type, descriptor.key_groups, descriptor.prefix_bytes)
    task = F.floor(group * F.lit(count) / F.lit(descriptor.key_groups)).cast(IntegerType())
    return df.repartitionById(count, task)
