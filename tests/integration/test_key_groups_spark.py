"""Key groups in Spark SQL: the published expression computes the published vectors."""

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from statelog.schemas.key_groups import KeyType, key_group_of, spark_expression

pytestmark = pytest.mark.spark
TYPES: dict[KeyType, tuple[DataType, Callable[[str], bytes | str | int]]] = {
    KeyType.BYTES: (BinaryType(), bytes.fromhex),
    KeyType.STRING: (StringType(), str),
    KeyType.LONG: (LongType(), int),
}


def vectors_of(key_type: KeyType) -> list[dict[str, Any]]:
    """Return the published vectors with keys of this type."""
    text = resources.files("statelog.schemas").joinpath("key_group_vectors.json").read_text("utf-8")
    return [vector for vector in json.loads(text)["vectors"] if vector["key_type"] == key_type.value]


@pytest.mark.parametrize("key_type", KeyType)
def test_spark_computes_the_vectors(spark: SparkSession, key_type: KeyType) -> None:
    """Spark's key group is ours for every vector and every count of key groups; a null key has none."""
    spark_type, native = TYPES[key_type]
    vectors = vectors_of(key_type)
    rows: list[tuple[int, object]] = [(number, native(vector["key"])) for number, vector in enumerate(vectors)]
    schema = StructType([StructField("n", LongType()), StructField("odd `name.x", spark_type)])
    frame = spark.createDataFrame([*rows, (-1, None)], schema)
    counts = (8, 128, 65536)
    expressions = [f"{spark_expression('odd `name.x', key_type, count)} AS g{count}" for count in counts]
    found: dict[int, tuple[int | None, ...]] = {
        row["n"]: tuple(row)[1:] for row in frame.selectExpr("n", *expressions).collect()
    }
    assert found.pop(-1) == (None, None, None)
    assert found == {n: tuple(v["key_groups"][str(count)] for count in counts) for n, v in enumerate(vectors)}


def test_spark_computes_the_vectors_of_prefixes(spark: SparkSession) -> None:
    """Prefixes have the published vectors also where one ends inside of a character, and for shorter keys."""
    text = resources.files("statelog.schemas").joinpath("key_group_vectors.json").read_text("utf-8")
    for vector in json.loads(text)["prefix_vectors"]:
        key_type = KeyType(vector["key_type"])
        spark_type, native = TYPES[key_type]
        frame = spark.createDataFrame([(native(vector["key"]),)], StructType([StructField("k", spark_type)]))
        expressions = [spark_expression("k", key_type, int(n), vector["prefix_bytes"]) for n in vector["key_groups"]]
        assert list(frame.selectExpr(*expressions).collect()[0]) == list(vector["key_groups"].values())


def test_narrow_integers_hash_as_longs(spark: SparkSession) -> None:
    """A column of a narrower integer type has the key groups of the same numbers as longs, negative ones too."""
    frame = spark.sql("SELECT CAST(id - 3 AS SMALLINT) AS k FROM range(6)")
    rows = frame.selectExpr("k", f"{spark_expression('k', KeyType.LONG, 128)} AS g").collect()
    assert {row["k"]: row["g"] for row in rows} == {k: key_group_of(k, KeyType.LONG, 128) for k in range(-3, 3)}
